"""Tests of the room `replica_agent/sql`."""
