"""The description of a table: schema, column types, partitions, key ranges, column statistics.

May import: csnlog/core, replication/core, replica_agent/footers.
Entry points: `TableSchema`, `values_of` (partitions), `Statistics`, `part_range`.
On failure: a schema or value that a table cannot hold is SchemaMismatchError or UnsupportedTypeError;
    nothing is kept.
"""
