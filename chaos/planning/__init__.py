"""The faults of a run, drawn from a seed within the limits that a cluster bears."""
