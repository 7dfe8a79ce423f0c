"""Tests of the checkers of isolation (tests/checkers)."""
