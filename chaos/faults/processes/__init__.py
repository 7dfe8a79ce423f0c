"""Faults of processes: they are killed, stopped, or do not run for a while."""
