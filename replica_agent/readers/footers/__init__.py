"""Parquet footers as readers are shown them: hints about floats are hidden, small files are merged. Pure.

May import: nothing of ours.
Entry points: `float_hints.changes`, `merged.merge`.
On failure: ValueError, for any bytes; a footer is never half changed.
"""
