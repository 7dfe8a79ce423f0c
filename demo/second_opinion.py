"""The same queries by another engine over the bytes of another replica.

DuckDB reads copies of the parts that a replica lists at a CSN, fetched by plain HTTP from its snapshot file
system and checked against the list's checksums. Parts never change, so each one is copied once per replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import duckdb

from workloads.agents import Agents
from workloads.compare import Row
from workloads.tpch.queries import TABLES as QUERIED
from workloads.tpch.queries import TpchQuery
from workloads.tpch.tables import TABLES, TpchTable

_MEMORY: Final = "1GB"


class SecondOpinion:
    """Answers queries at a CSN from the copies of one replica's parts.

    Args:
        folder: For the copies.
    """

    def __init__(self, agents: Agents, replica: str, folder: Path) -> None:
        self.replica = replica
        self._agents = agents
        self._folder = folder / replica

    def answers(self, csn: int, queries: Sequence[TpchQuery]) -> list[list[Row]]:
        """The rows of each query at a CSN.

        CorruptError when a part's bytes do not have their checksum; errors of the agent as it answers them.
        """
        spill = self._folder.parent / "spill"  # otherwise .tmp in the working directory
        with duckdb.connect(config={"memory_limit": _MEMORY, "temp_directory": str(spill)}) as connection:
            for table in TABLES:
                if table.name in QUERIED:
                    connection.execute(
                        _view(table, self._agents.copy_parts(self.replica, csn, table.name, self._folder))
                    )
            return [connection.execute(query.for_duckdb).fetchall() for query in queries]


def _view(table: TpchTable, files: Sequence[Path]) -> str:
    listed = ", ".join("'" + str(path).replace("'", "''") + "'" for path in files)
    types = ", ".join(f"{column}: INTEGER" for column in table.partition_by)
    hive = f", hive_partitioning = true, hive_types = {{{types}}}" if types else ""
    return f"create view {table.name} as select * from read_parquet([{listed}]{hive})"  # noqa: S608 - own names
