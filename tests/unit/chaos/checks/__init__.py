"""Tests of the chaos runner's pure parts."""
