"""Tests of chaos/record."""
