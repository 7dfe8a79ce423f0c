"""Tests of the replica agent, by room."""
