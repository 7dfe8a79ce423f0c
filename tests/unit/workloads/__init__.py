"""Tests of what the demo, the benchmarks and the tests share."""
