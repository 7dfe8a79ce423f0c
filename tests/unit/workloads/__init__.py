"""Tests of the code that the demo, the benchmarks and the tests share."""
