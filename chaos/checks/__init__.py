"""The checks: what must be true at the end of a run. One file for each; the list is `ALL`."""
