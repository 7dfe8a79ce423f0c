"""Tests of chaos/planning."""
