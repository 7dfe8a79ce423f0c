"""Tests of chaos/judging."""
