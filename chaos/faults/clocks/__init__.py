"""Faults of wall clocks."""
