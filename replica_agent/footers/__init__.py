"""Parquet footers as bytes: hints are hidden, files are combined, cut, and get other columns. Pure.

May import: nothing of ours.
Entry points: `float_hints.changes`, `combined.combine`, `cutting.cut`, `evolving.evolve`.
On failure: ValueError, for any bytes; a footer is never half changed.
"""
