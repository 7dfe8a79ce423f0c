"""The walls of the house: which folder may import which; docs/architecture.md shows the same table.

    python -m tests.support.project.floors

writes the table of that page from this module. A folder that is not named here may not hold modules of the
product.
"""

from __future__ import annotations

import ast
import sys
from typing import Final

from tests.support.project import source

#: The folders of the log that all folders above it may import.
_LOG: Final = ("csnlog", "csnlog/cluster", "csnlog/core")
#: The folders of the log and of replication that all folders above them may import.
_REPLICATION: Final = ("replication", "replication/core")
_AGENT: Final = (*_LOG, *_REPLICATION, "replica_agent/config")
_STORE: Final = (*_AGENT, "replica_agent/tables", "replica_agent/storage")
_STATEMENTS: Final = (*_STORE, "replica_agent/sql", "replica_agent/transactions")
_ABOVE: Final = (*_STATEMENTS, "replica_agent/transactions/statements")
_CLIENT_ROOMS: Final = tuple(f"tidelock/client/{room}" for room in ("values", "agents", "reads", "writes"))
_CLIENT: Final = ("tidelock/client", *_CLIENT_ROOMS)
_SERVICES: Final = (
    *_ABOVE,
    "replication/locks",
    *(
        f"replica_agent/{room}"
        for room in (
            "audit",
            "cloning",
            "compaction",
            "landing",
            "readers",
            "replicas",
            "scrubbing",
            "snapshots",
            "system_tables",
            "transactions/ending",
            "transactions/outcomes",
            "uploads",
        )
    ),
)
#: Folders that routes import to name values; the services decide what is done with them.
_ROUTES: Final = (
    *_REPLICATION,
    "csnlog/core",
    *(
        f"replica_agent/{room}"
        for room in (
            "config",
            "tables",
            "storage",
            "readers",
            "sql",
            "snapshots",
            "transactions",
            "transactions/statements",
            "transactions/ending",
            "uploads",
            "services",
        )
    ),
)

#: Folder: the folders that it may import, besides itself and the leaves. From the ground up: a folder names
#: only earlier folders, so no import runs up and there is no circle.
FLOORS: Final[dict[str, tuple[str, ...]]] = {
    "tidelock/wire": (),
    "csnlog/core": (),
    "csnlog/testing": ("csnlog/core",),
    "csnlog/zookeeper": ("csnlog/core",),
    "csnlog/cluster": ("csnlog/core", "csnlog/zookeeper"),
    "csnlog": ("csnlog/core", "csnlog/cluster"),
    "replication/core": ("csnlog/core",),
    "replication": (*_LOG, "replication/core"),
    "replication/locks": ("csnlog", "csnlog/core", "replication/core"),
    "replica_agent/config": ("csnlog/core",),
    "replica_agent/workers": (),
    "replica_agent/footers": (),
    "replica_agent/tables": ("csnlog/core", "replication/core", "replica_agent/footers"),
    "replica_agent/storage": (*_AGENT, "replica_agent/tables", "replica_agent/footers"),
    "replica_agent/system_tables": _STORE,
    "replica_agent/audit": (*_AGENT, "replica_agent/storage", "replica_agent/tables"),
    "replica_agent/scrubbing": (*_AGENT, "replica_agent/storage"),
    "replica_agent/readers": (
        *_AGENT,
        "replica_agent/workers",
        "replica_agent/tables",
        "replica_agent/storage",
        "replica_agent/footers",
    ),
    "replica_agent/sql": (
        *_AGENT,
        "replica_agent/workers",
        "replica_agent/tables",
        "replica_agent/footers",
        "replica_agent/storage",
        "replica_agent/system_tables",
    ),
    "replica_agent/replicas": _STORE,
    "replica_agent/cloning": _STORE,
    "replica_agent/rebuilding": (*_AGENT, "csnlog/zookeeper", "replica_agent/storage"),
    "replica_agent/skipping": (*_LOG, "csnlog/zookeeper", "replica_agent/config"),
    "replica_agent/snapshots": (*_STORE, "replica_agent/readers", "replica_agent/sql"),
    "replica_agent/transactions": _STORE,
    "replica_agent/transactions/outcomes": (*_STORE, "replica_agent/transactions"),
    "replica_agent/transactions/statements": (*_STATEMENTS, "replication/locks"),
    "replica_agent/transactions/ending": _ABOVE,
    "replica_agent/landing": (*_ABOVE, "replica_agent/transactions/ending"),
    "replica_agent/compaction": (*_ABOVE, "replica_agent/transactions/ending"),
    "replica_agent/uploads": (*_ABOVE, "replica_agent/workers", "replica_agent/replicas"),
    "replica_agent/services": _SERVICES,
    "replica_agent/api": _ROUTES,
    "replica_agent/lifecycle": (
        *_SERVICES,
        "csnlog/zookeeper",
        "replica_agent/services",
        "replica_agent/api",
    ),
    "replica_agent": ("csnlog", "replica_agent/config", "replica_agent/lifecycle"),
    "tidelock/client/values": (),
    "tidelock/client/agents": (),
    "tidelock/client/reads": ("tidelock/client/values", "tidelock/client/agents"),
    "tidelock/client/writes": _CLIENT_ROOMS[:3],
    "tidelock/client": _CLIENT_ROOMS,
    "tidelock/aio": ("tidelock/client", "tidelock/client/agents"),
    "tidelock": ("tidelock/client",),
    "tidelock/cluster": ("tidelock", *_CLIENT),
    "spark": ("tidelock", *_CLIENT),
    "spark/source": ("spark", "tidelock", *_CLIENT),
    "pyspark_tidelock": ("spark/source",),
    "tidelock/testing": ("tidelock", *_CLIENT, "tidelock/cluster"),
    "tidelock/metastore": ("tidelock", *_CLIENT),
    "tidelock/cli": ("tidelock", *_CLIENT, "tidelock/cluster", "tidelock/metastore"),
    # Not installed (docs/adr/0018-the-demo-is-not-installed.md).
    "workloads/tpch": ("tidelock", "tidelock/client"),
    "workloads": ("csnlog/core", "tidelock", "tidelock/cluster"),
    "demo": (
        *("spark", "tidelock", "tidelock/cli", "tidelock/client", "tidelock/cluster"),
        *("workloads", "workloads/tpch"),
    ),
    "demo/containers": ("demo", "tidelock", "tidelock/client", "tidelock/testing", "workloads"),
}
#: Modules that all folders may import; they import nothing of the namespace.
LEAVES: Final = (
    "tidelock.casts",
    "tidelock.column_defaults",
    "tidelock.column_names",
    "tidelock.column_types",
    "tidelock.errors",
    "tidelock.exits",
    "tidelock.parquet_leaves",
    "tidelock.parquet_rows",
    "tidelock.float_mark",
    "tidelock.loopback_names",
    "tidelock.part_layout",
    "tidelock.partition_paths",
    "tidelock.ranged_file",
    "tidelock.read_route",
    "tidelock.secret_file",
    "tidelock.table_columns",
    "tidelock.token_text",
    "tidelock.type_text",
    "tidelock.wire",
)
#: Single imports through a wall: the path of the module, what it may import (ADR 0003, 0052; fault points).
DOORS: Final = {
    "tidelock/client/agents/discovery.py": ("tidelock.csnlog.cluster.discovery", "tidelock.cluster_layout"),
    "csnlog/cluster/bootstrap.py": ("tidelock.csnlog.faults",),
    "tidelock/testing/agent.py": (
        "tidelock.replica_agent.main",
        "tidelock.replica_agent.config.lean_start",
    ),
}

_BEGIN: Final = "<!-- floors: written by python -m tests.support.project.floors -->\n"
_END: Final = "<!-- end of floors -->\n"


def page_with_table(page: str) -> str:
    """Return docs/architecture.md with the table of folders from :data:`FLOORS` and the docstrings."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return before + _BEGIN + _table() + _END + after


def job_of(folder: str) -> str:
    """Return the first line of the docstring of a folder, without its full stop."""
    tree = ast.parse((source.ROOT / folder / "__init__.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").split("\n", maxsplit=1)[0].removesuffix(".")


def _table() -> str:
    rows = ["| folder | job | may import |", "|---|---|---|"]
    for folder, below in FLOORS.items():
        walls = ", ".join(f"`{one}`" for one in below) or "nothing of ours"
        rows.append(f"| `{folder}` | {job_of(folder)} | {walls} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Write the table into docs/architecture.md."""
    page = source.ROOT / "docs/architecture.md"
    page.write_text(page_with_table(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
