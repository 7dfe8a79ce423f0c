"""The faults: what can happen to a cluster. One file for each kind; the list is `ALL`."""
