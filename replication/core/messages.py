"""The events that the machines of replication receive and the instructions that they issue. Pure.

``brief`` represents a message in the story of a machine (:mod:`tidelock.csnlog.core.machine`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, Tid
from tidelock.csnlog.core.model import Entry, LogRecord
from tidelock.replication.core.model import (
    CountedCopies,
    CountingRules,
    Held,
    PartMeta,
    ResolvedRecord,
    Wanted,
)

# ------------------------------------------------------------------------------- the executed prefix: events


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The next record of the log, with those of its parts that are held and of its tids that are applied."""

    record: LogRecord
    held: frozenset[PartId]
    known: frozenset[str]

    @property
    def brief(self) -> tuple[str, Csn]:
        """The name and the number."""
        return "RecordRead", self.record.csn


@dataclass(frozen=True, slots=True)
class PartHeld:
    """A part or manifest is durable and verified here now, by whatever route it arrived."""

    part: PartId


@dataclass(frozen=True, slots=True)
class PartLost:
    """A part or manifest was found damaged or missing."""

    part: PartId


@dataclass(frozen=True, slots=True)
class ManifestRead:
    """The entries of a held manifest. ``held``: those of their parts that are held."""

    part: PartId
    entries: tuple[Entry, ...]
    held: frozenset[PartId]

    @property
    def brief(self) -> tuple[str, PartId, int]:
        """The name, the manifest, and the number of its entries."""
        return "ManifestRead", self.part, len(self.entries)


@dataclass(frozen=True, slots=True)
class Applied:
    """The batch of the last :class:`Apply` is durable and visible; ``csn`` is its last CSN."""

    csn: Csn


@dataclass(frozen=True, slots=True)
class NotApplied:
    """The batch of the last :class:`Apply` could not be made durable; nothing of it is visible."""


#: An event of the log or of parts.
PrefixCommand = RecordRead | PartHeld | PartLost
#: The result of an instruction.
PrefixAnswer = ManifestRead | Applied | NotApplied
PrefixEvent = PrefixCommand | PrefixAnswer

# ------------------------------------------------------------------------- the executed prefix: instructions


@dataclass(frozen=True, slots=True)
class FetchPart:
    """Get this part (or manifest) from any replica that has it."""

    wanted: Wanted


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """Read the entries of this held manifest and answer with :class:`ManifestRead`."""

    part: PartId


@dataclass(frozen=True, slots=True)
class Apply:
    """Make these contiguous, executed records visible in one durable transaction."""

    records: tuple[ResolvedRecord, ...]

    @property
    def brief(self) -> tuple[str, Csn, Csn]:
        """The name, the first and the last number."""
        return "Apply", self.records[0].csn, self.records[-1].csn


@dataclass(frozen=True, slots=True)
class Blocked:
    """The next record cannot be applied: ``part`` of ``tid`` is missing, for ``reason``."""

    csn: Csn
    tid: str
    part: PartId
    reason: str


@dataclass(frozen=True, slots=True)
class Unblocked:
    """Nothing that has been read is held back any more."""


PrefixInstruction = FetchPart | ReadManifest | Apply | Blocked | Unblocked

# ---------------------------------------------------------------------------------- durable copies: events


@dataclass(frozen=True, slots=True)
class TransactionSealed:
    """A transaction of this home accepts no more statements; ``parts`` is everything that it adds."""

    tid: Tid
    parts: tuple[PartMeta, ...]

    @property
    def brief(self) -> tuple[str, str, int]:
        """The name, the transaction, and the number of its parts."""
        return "Sealed", str(self.tid), len(self.parts)


@dataclass(frozen=True, slots=True)
class PersistedAtHome:
    """Files, rows and prepared mark of the transaction are durable at its home."""

    tid: Tid


@dataclass(frozen=True, slots=True)
class Ack:
    """A peer reports what it holds. The report is a state: a later answer may withdraw a transaction."""

    held: Held


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """The member list shows other disks, racks or members, or another number of copies."""

    rules: CountingRules

    @property
    def brief(self) -> tuple[str, int, int]:
        """The name, the version, and the number of the other replicas."""
        return "RulesChanged", self.rules.version, len(self.rules.places)


@dataclass(frozen=True, slots=True)
class CountAgain:
    """The commit was refused, since ``replicas`` is at a version above ``above`` now: count there."""

    tid: Tid
    above: int


@dataclass(frozen=True, slots=True)
class Deadline:
    """The commit timeout of the transaction has passed."""

    tid: Tid


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The home has rolled the transaction back."""

    tid: Tid


@dataclass(frozen=True, slots=True)
class TransactionDecided:
    """The log has decided the transaction; its copies are not awaited any more."""

    tid: Tid


#: All of these are commands: an instruction of the machine goes to the callers that wait, and has no answer.
CopiesEvent = (
    TransactionSealed
    | PersistedAtHome
    | Ack
    | RulesChanged
    | CountAgain
    | Deadline
    | RolledBack
    | TransactionDecided
)

# ---------------------------------------------------------------------------- durable copies: instructions


@dataclass(frozen=True, slots=True)
class Ready:
    """The transaction may go into a commit record, with these copies."""

    tid: Tid
    copies: CountedCopies


@dataclass(frozen=True, slots=True)
class NotEnough:
    """The transaction did not get its copies in time: ``have`` of ``need``; ``missing`` did not confirm."""

    tid: Tid
    have: int
    need: int
    missing: tuple[ReplicaId, ...]


CopiesInstruction = Ready | NotEnough
