"""Spark in processes of its own, the jobs it runs for tests, and the proof of what they wrote."""
