"""Spark in separate processes, the jobs that it runs for tests, and the proof of the written rows."""
