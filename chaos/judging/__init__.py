"""Judges of histories that several workloads share."""
