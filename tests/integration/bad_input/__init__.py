"""Input that must be refused: the specific error, and the proof that nothing was changed."""
