"""Tests of the local cluster and of what starts its processes."""
