"""The events that the machines of replication receive and the instructions that they issue. Pure.

``brief`` represents a message in the story of a machine (:mod:`tidelock.csnlog.core.machine`).
"""

from __future__ import annotations

import msgspec

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


class RecordRead(msgspec.Struct, frozen=True):
    """The next record of the log, with those of its parts that are held and of its tids that are applied."""

    record: LogRecord
    held: frozenset[PartId]
    known: frozenset[str]

    @property
    def brief(self) -> tuple[str, Csn]:
        """The name and the number."""
        return "RecordRead", self.record.csn


class PartHeld(msgspec.Struct, frozen=True):
    """A part or manifest is durable and verified here now, by whatever route it arrived."""

    part: PartId


class PartLost(msgspec.Struct, frozen=True):
    """A part or manifest was found damaged or missing."""

    part: PartId


class ManifestRead(msgspec.Struct, frozen=True):
    """The entries of a held manifest. ``held``: those of their parts that are held."""

    part: PartId
    entries: tuple[Entry, ...]
    held: frozenset[PartId]

    @property
    def brief(self) -> tuple[str, PartId, int]:
        """The name, the manifest, and the number of its entries."""
        return "ManifestRead", self.part, len(self.entries)


class Applied(msgspec.Struct, frozen=True):
    """The batch of the last :class:`Apply` is durable and visible; ``csn`` is its last CSN."""

    csn: Csn


class NotApplied(msgspec.Struct, frozen=True):
    """The batch of the last :class:`Apply` could not be made durable; nothing of it is visible."""


#: An event of the log or of parts.
PrefixCommand = RecordRead | PartHeld | PartLost
#: The result of an instruction.
PrefixAnswer = ManifestRead | Applied | NotApplied
PrefixEvent = PrefixCommand | PrefixAnswer

# ------------------------------------------------------------------------- the executed prefix: instructions


class FetchPart(msgspec.Struct, frozen=True):
    """Get this part (or manifest) from any replica that has it."""

    wanted: Wanted


class ReadManifest(msgspec.Struct, frozen=True):
    """Read the entries of this held manifest and answer with :class:`ManifestRead`."""

    part: PartId


class Apply(msgspec.Struct, frozen=True):
    """Make these contiguous, executed records visible in one durable transaction."""

    records: tuple[ResolvedRecord, ...]

    @property
    def brief(self) -> tuple[str, Csn, Csn]:
        """The name, the first and the last number."""
        return "Apply", self.records[0].csn, self.records[-1].csn


class Blocked(msgspec.Struct, frozen=True):
    """The next record cannot be applied: ``part`` of ``tid`` is missing, for ``reason``."""

    csn: Csn
    tid: str
    part: PartId
    reason: str


class Unblocked(msgspec.Struct, frozen=True):
    """Nothing that has been read is held back any more."""


PrefixInstruction = FetchPart | ReadManifest | Apply | Blocked | Unblocked

# ---------------------------------------------------------------------------------- durable copies: events


class TransactionSealed(msgspec.Struct, frozen=True):
    """A transaction of this home accepts no more statements; ``parts`` is everything that it adds."""

    tid: Tid
    parts: tuple[PartMeta, ...]

    @property
    def brief(self) -> tuple[str, str, int]:
        """The name, the transaction, and the number of its parts."""
        return "Sealed", str(self.tid), len(self.parts)


class PersistedAtHome(msgspec.Struct, frozen=True):
    """Files, rows and prepared mark of the transaction are durable at its home."""

    tid: Tid


class Ack(msgspec.Struct, frozen=True):
    """A peer reports what it holds. The report is a state: a later answer may withdraw a transaction."""

    held: Held


class RulesChanged(msgspec.Struct, frozen=True):
    """The member list shows other disks, racks or members, or another number of copies."""

    rules: CountingRules

    @property
    def brief(self) -> tuple[str, int, int]:
        """The name, the version, and the number of the other replicas."""
        return "RulesChanged", self.rules.version, len(self.rules.places)


class CountAgain(msgspec.Struct, frozen=True):
    """The commit was refused, since ``replicas`` is at a version above ``above`` now: count there."""

    tid: Tid
    above: int


class Deadline(msgspec.Struct, frozen=True):
    """The commit timeout of the transaction has passed."""

    tid: Tid


class RolledBack(msgspec.Struct, frozen=True):
    """The home has rolled the transaction back."""

    tid: Tid


class TransactionDecided(msgspec.Struct, frozen=True):
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


class Ready(msgspec.Struct, frozen=True):
    """The transaction may go into a commit record, with these copies."""

    tid: Tid
    copies: CountedCopies


class NotEnough(msgspec.Struct, frozen=True):
    """The transaction did not get its copies in time: ``have`` of ``need``; ``missing`` did not confirm."""

    tid: Tid
    have: int
    need: int
    missing: tuple[ReplicaId, ...]


CopiesInstruction = Ready | NotEnough
