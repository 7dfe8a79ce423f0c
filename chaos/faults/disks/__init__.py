"""Faults of disks: full, slow, failing, empty, and bytes that rot."""
