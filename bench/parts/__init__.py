"""The parts of the benchmark: each measures one question and returns its figures."""
