"""Questions to a cluster while faults act."""
