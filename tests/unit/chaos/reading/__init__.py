"""Tests of chaos/reading."""
