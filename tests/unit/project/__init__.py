"""Tests of the project itself: walls, pages, packaging, benchmarks."""
