"""Tests of the room `replica_agent/readers/footers`."""
