"""Faults of the network: nodes that do not hear each other, slow and lossy links."""
