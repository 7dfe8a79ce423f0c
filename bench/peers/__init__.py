"""Other table formats, committing the same rows on the same machine.

Each is measured in a process tree of its own (`python -m bench.peers NAME`), since DuckLake needs another
DuckDB than Tidelock (bench/ducklake.in).
"""
