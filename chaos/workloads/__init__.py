"""The workloads: what clients do. One file for each; the list is `ALL`."""
