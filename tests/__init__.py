"""Tests of Tidelock: unit (pure, no processes), integration (real parts), and what they share (support)."""
