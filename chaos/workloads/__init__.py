"""The workloads: what clients do. One file for each; the list is `ALL`."""

from __future__ import annotations

from typing import Final

from chaos.workloads.bank import Bank
from chaos.workloads.list_append import ListAppend
from chaos.workloads.workload import Workload

ALL: Final[tuple[type[Workload], ...]] = (ListAppend, Bank)
