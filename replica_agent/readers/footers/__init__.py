"""Parquet footers as readers are shown them: hints about floats are hidden, small files are combined. Pure.

May import: nothing of ours.
Entry points: `float_hints.changes`, `combined.combine`.
On failure: ValueError, for any bytes; a footer is never half changed.
"""
