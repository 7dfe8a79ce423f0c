"""Tests of chaos/clients."""
