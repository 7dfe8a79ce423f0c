"""Transactions: their statements, their commit, and small writes of one request."""
