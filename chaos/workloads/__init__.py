"""The workloads: what clients do. One file for each; the list is `ALL`."""

from __future__ import annotations

from typing import Final

from chaos.workloads.bank import Bank
from chaos.workloads.derived import Derived
from chaos.workloads.labels import Labels
from chaos.workloads.landing import Landing
from chaos.workloads.linked_list import LinkedList
from chaos.workloads.list_append import ListAppend
from chaos.workloads.long_fork import LongFork
from chaos.workloads.moves import Moves
from chaos.workloads.offsets import Offsets
from chaos.workloads.pairs import Pairs
from chaos.workloads.refresh import Refresh
from chaos.workloads.row_checks import RowChecks
from chaos.workloads.set_full import SetFull
from chaos.workloads.streams import Streams
from chaos.workloads.table_lives import TableLives
from chaos.workloads.unique_keys import UniqueKeys
from chaos.workloads.workload import Workload

ALL: Final[tuple[type[Workload], ...]] = (
    ListAppend,
    Bank,
    Pairs,
    Moves,
    LinkedList,
    SetFull,
    LongFork,
    UniqueKeys,
    Derived,
    Landing,
    Labels,
    Refresh,
    Streams,
    TableLives,
    RowChecks,
    Offsets,
)
