"""Faults of the ensemble, and of sessions with it."""
