"""The settings of replication: pushes, fetches, clones, apply, and the members' life and silence.

They are a part of :class:`tidelock.replica_agent.config.settings.AgentSettings`.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from tidelock.replica_agent.config.identity_settings import Bytes, Count, Positive


class ReplicationSettings(BaseModel):
    """Bounds of the traffic between replicas, and of their patience with each other."""

    push_bytes_max: Bytes = Field(16 << 20, description="Inline bytes of one push request.")
    push_timeout_s: Positive = Field(10.0, description="A push without answer for so long is sent again.")
    fetch_range_bytes: Bytes = Field(16 << 20, description="Bytes of one ranged fetch.")
    fetch_concurrency: Count = Field(
        4, description="Large parts fetched at once, as many again for a clone; transactions take turns."
    )
    fetch_small_concurrency: Count = Field(
        1000,
        description=(
            "Parts of at most `inline_part_bytes_max` fetched at once; they share requests and fsyncs."
        ),
    )
    fetch_grace_s: Positive = Field(
        0.05,
        description=(
            "How long a small part of a commit is left to a push that may be under way, before it is fetched."
        ),
    )
    fetch_patience_s: Positive = Field(
        1.0,
        description=(
            "A replica that sends nothing of a part for so long is left for another one that has it. The "
            "time is doubled at each silence of a replica, up to `push_timeout_s`, until it answers again."
        ),
    )
    fetch_early_max: Count = Field(
        10_000,
        description="Most parts of undecided transactions fetched at once; more are left to their commit.",
    )
    clone_manifests_max: Count = Field(2, description="Catalogs sent at a time to replicas that clone.")
    clone_manifest_ttl_s: Positive = Field(600.0, description="How long an unused catalog of a clone stays.")
    clone_retries: Count = Field(5, description="How often a request for a catalog is repeated at one peer.")
    clone_parts_ahead: Count = Field(2000, description="Missing parts wanted at a time; the others wait.")
    peer_hints_max: Count = Field(
        1000, description="Hints that wait for one peer; beyond it the oldest is dropped, as a hint may be."
    )
    peer_ask_timeout_s: Positive = Field(
        0.5, description="How long a peer that is asked how far it is may take; then it counts as silent."
    )
    retry_wait_max_s: Positive = Field(2.0, description="Longest pause between two tries towards a peer.")
    peer_connections: Count = Field(8, description="HTTP connections to one peer.")
    apply_records_max: Count = Field(256, description="Most records applied in one catalog transaction.")
    apply_ahead_records: Count = Field(
        1024, description="Records read and not applied; beyond it the follower waits."
    )
    apply_missing_parts_max: Count = Field(
        10_000, description="Missing parts at which no more records are read; they are fetched first."
    )
    max_lag: Count = Field(
        2000,
        description="From this lag (CSNs) of a replica on commits are delayed, at twice the lag the longest.",
    )
    lag_delay_max_s: Positive = Field(
        1.0, description="Longest delay of a commit while other replicas lag behind."
    )
    blocked_after_s: Positive = Field(
        10.0,
        description=(
            "A replica says that it is blocked when a record has waited for so long and nothing of what it "
            "lacks has arrived meanwhile."
        ),
    )
    progress_interval_s: Positive = Field(
        1.0, description="Shortest time between two writes of this replica's progress."
    )
    undecided_check_s: Positive = Field(
        5.0, description="How often undecided transactions of other homes are asked about."
    )
    fence_timeout_s: Positive = Field(
        5.0,
        description=(
            "A home that gives no sign of life for so long, after its ZooKeeper session has ended, is fenced "
            "by any replica that needs the outcome of one of its transactions, which are aborted by that."
        ),
    )
    refused_timeout_s: float = Field(
        1.0,
        ge=0,
        description=(
            "A home whose API address refuses connections for so long is fenced likewise, without waiting "
            "for its session: its process is gone; 0 = never."
        ),
    )
    member_refresh_s: Positive = Field(
        5.0, description="How often the member list is read again although no watch fired."
    )
