"""Parquet footers as bytes: hints about floats are hidden, small files are combined, large ones cut. Pure.

May import: nothing of ours.
Entry points: `float_hints.changes`, `combined.combine`, `cutting.cut`.
On failure: ValueError, for any bytes; a footer is never half changed.
"""
