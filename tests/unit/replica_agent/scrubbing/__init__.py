"""Tests of the search for rot."""
