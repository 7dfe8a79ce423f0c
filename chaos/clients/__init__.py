"""Sessions of clients that behave as users do."""
