"""The mark of Parquet files whose hints about floats are right.

It has a module of its own: reader processes check it, and they do without pyarrow and its hundred megabytes.
"""

from __future__ import annotations

from typing import Final

#: Key in the metadata of a file whose hints about floats (ranges, dictionaries) are right for all readers, by
#: the rule of `tidelock.part_layout.FloatColumns`. Others are served without these hints (ADR 0035).
FLOATS_MARK: Final = b"tidelock.floats"
