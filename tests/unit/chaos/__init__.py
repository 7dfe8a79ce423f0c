"""Tests of the chaos runner."""
