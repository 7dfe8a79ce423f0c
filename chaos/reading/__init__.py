"""Readings of a journal: faults as bands of time, and the stalls of clients beside them."""
