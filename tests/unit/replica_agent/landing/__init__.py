"""Tests of the room `replica_agent/landing`."""
