"""Benches that drive the pure machines event by event."""
