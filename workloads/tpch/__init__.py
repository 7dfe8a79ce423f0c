"""TPC-H: its tables as tables of Tidelock, generated data, new orders, queries for Spark and DuckDB."""

from __future__ import annotations
