"""The metrics of an agent at /metrics; the reader processes' counters are read from a file at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelock.csnlog.core.model import ReplicaPhase

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class _ReaderCounters(Collector):
    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for name, value in self._read().items():
            yield CounterMetricFamily(
                f"tidelock_reader_{name}", f"Snapshot file system: {name.replace('_', ' ')}.", value=value
            )


class CompactionMetrics:
    """Metrics of compaction and of back-pressure on inserts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        self.inserts_delayed = Counter(
            "tidelock_inserts_delayed",
            "Waits of inserts for partitions with many parts.",
            registry=registry,
        )
        self.inserts_refused = Counter(
            "tidelock_inserts_refused",
            "Inserts refused since a partition had too many parts.",
            registry=registry,
        )
        self.merges = Counter(
            "tidelock_compactions",
            "Merges of parts by this replica, by result: done, gave_way, failed.",
            ["result"],
            registry=registry,
        )
        self.bytes = Counter(
            "tidelock_compacted_bytes", "Bytes of the parts that were merged.", registry=registry
        )
        self.seconds = Histogram(
            "tidelock_compaction_seconds",
            "From the begin of a merge until it is visible here.",
            buckets=_SECONDS,
            registry=registry,
        )


class AuditMetrics:
    """Metrics of audits."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        self.findings = Gauge(
            "tidelock_audit_findings", "Findings of the last audit of this replica.", registry=registry
        )
        self.bytes = Counter(
            "tidelock_audit_bytes", "Bytes of parts that audits have read.", registry=registry
        )


class ScrubMetrics:
    """Metrics of the search for rot."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        self.bytes = Counter(
            "tidelock_scrubbed_bytes", "Bytes of parts that were read to find rot.", registry=registry
        )
        self.passes = Counter(
            "tidelock_scrub_passes", "Times that all parts of this replica were read.", registry=registry
        )
        self.disagreeing = Gauge(
            "tidelock_disagreeing_replicas",
            "Replicas that agreed with each other and not with this one, at the last comparison.",
            registry=registry,
        )


class ClockMetrics:
    """Metrics of the wall clock."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        self.offset = Gauge(
            "tidelock_clock_offset_seconds",
            "How far the wall clock is ahead of the middle one of the other clocks that are known.",
            registry=registry,
        )
        self.off = Gauge(
            "tidelock_clock_off",
            "1 if most other clocks say that this one is off by more than clock_offset_max_s.",
            registry=registry,
        )


class HeldRecordMetrics:
    """The records that each replica holds back in ZooKeeper."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics."""
        self.records = Gauge(
            "tidelock_held_records",
            "Records that a replica holds back in ZooKeeper.",
            ["replica"],
            registry=registry,
        )
        self.bytes = Gauge(
            "tidelock_held_record_bytes",
            "Estimated memory of ZooKeeper for the records that a replica holds back.",
            ["replica"],
            registry=registry,
        )


class LandingMetrics:
    """The rows of landing tables."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rows = Counter(
            "tidelock_landed_rows", "Rows of landing tables acknowledged here.", registry=registry
        )
        self.rescued = Counter(
            "tidelock_rescued_rows",
            "Rows that landed in a transaction that could not commit, and were committed here in another.",
            registry=registry,
        )


class Metrics:
    """All metrics of an agent, in a separate registry."""

    def __init__(self) -> None:
        """Register everything but the readers' counters."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.commits = Counter(
            "tidelock_commits", "Transactions decided here, by result.", ["result"], registry=self.registry
        )
        self.commit_seconds = Histogram(
            "tidelock_commit_seconds",
            "From the request to commit until it is decided and applied here.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.commit_delay_seconds = _commit_delay(self.registry)
        self.inserted_rows = Counter(
            "tidelock_inserted_rows", "Rows staged by clients of this replica.", registry=self.registry
        )
        self.landing = LandingMetrics(self.registry)
        self.channel_requests = _channel_requests(self.registry)
        self.uploads = _uploads(self.registry)
        self.records_applied = Counter(
            "tidelock_records_applied", "Records of the CSN log applied here.", registry=self.registry
        )
        self.tids_applied = Counter(
            "tidelock_tids_applied", "Transactions in those records.", registry=self.registry
        )
        self.corrupt_parts = Counter(
            "tidelock_corrupt_parts",
            "Parts whose bytes did not match their checksum.",
            registry=self.registry,
        )
        self.snapshot_csn = Gauge(
            "tidelock_snapshot_csn", "Up to this CSN everything is applied here.", registry=self.registry
        )
        self.clock = ClockMetrics(self.registry)
        self.phase = _phase(self.registry)
        self.horizon = Gauge(
            "tidelock_horizon_csn", "Below it nothing is promised, as noted here.", registry=self.registry
        )
        self.tail = Gauge(
            "tidelock_tail_csn", "Below it commit records are deleted, as noted here.", registry=self.registry
        )
        self.pins = Gauge(
            "tidelock_pins", "Pins of the cluster, as this replica has seen them.", registry=self.registry
        )
        self.oldest = Gauge(
            "tidelock_oldest_csn", "Oldest CSN that this replica has in use.", registry=self.registry
        )
        self.held = HeldRecordMetrics(self.registry)
        self.collected_parts = Counter(
            "tidelock_collected_parts", "Removed parts that were deleted here.", registry=self.registry
        )
        self.open_transactions = Gauge(
            "tidelock_open_transactions", "Transactions that have not ended.", registry=self.registry
        )
        self.locks = Gauge(
            "tidelock_locks",
            "Removal locks of this replica in ZooKeeper, those of committed removals included.",
            registry=self.registry,
        )
        self.staged_memory = Gauge(
            "tidelock_staged_memory_bytes", "Small staged parts in memory.", registry=self.registry
        )
        self.compaction = CompactionMetrics(self.registry)
        self.scrub = ScrubMetrics(self.registry)
        self.audit = AuditMetrics(self.registry)

    def add_parts(self, largest: Callable[[], int]) -> None:
        """Show the number of parts of the largest partition."""
        gauge = Gauge(
            "tidelock_partition_parts_max", "Parts of the partition that has most.", registry=self.registry
        )
        gauge.set_function(largest)

    def add_missing(self, missing: Callable[[], int]) -> None:
        """Show the bytes of visible parts that are still to be fetched after a clone."""
        gauge = Gauge(
            "tidelock_missing_bytes",
            "Bytes of visible parts that this replica lacked at its start and still fetches.",
            registry=self.registry,
        )
        gauge.set_function(missing)

    def add_room(self, free: Callable[[], int]) -> None:
        """Show the free space of the disk."""
        gauge = Gauge(
            "tidelock_disk_free_bytes",
            "Free bytes on the disk of the data directory.",
            registry=self.registry,
        )
        gauge.set_function(free)

    def add_readers(self, read: Callable[[], Mapping[str, int]]) -> None:
        """Show the counters of the reader processes too."""
        self.registry.register(_ReaderCounters(read))


def _commit_delay(registry: CollectorRegistry) -> Counter:
    what = "Time for which commits were delayed since other replicas lagged behind."
    return Counter("tidelock_commit_delay_seconds", what, registry=registry)


def _phase(registry: CollectorRegistry) -> Enum:
    what = "How this replica follows the log; blocked and full need an operator."
    states = [phase.value for phase in ReplicaPhase]
    return Enum("tidelock_replica_phase", what, states=states, registry=registry)


def _uploads(registry: CollectorRegistry) -> Counter:
    what = "Files that this replica has taken for the folders of transactions, by their home: own, other."
    return Counter("tidelock_uploads", what, ["home"], registry=registry)


def _channel_requests(registry: CollectorRegistry) -> Counter:
    what = "Requests that came over channels, by the side that opened them: client, peer."
    return Counter("tidelock_channel_requests", what, ["side"], registry=registry)
