"""Faults: a laboratory of named fault points, a TCP proxy, damage behind an agent's back, refusals."""
