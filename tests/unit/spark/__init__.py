"""Tests of Spark's side."""
