"""The settings of compaction, and of the back-pressure on inserts that make many small parts.

They are a part of :class:`tidelock.replica_agent.config.settings.AgentSettings`.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from tidelock.replica_agent.config.identity_settings import Bytes, Count, Positive


class CompactionSettings(BaseModel):
    """Compaction, and the delay of inserts where it does not keep up."""

    compaction: bool = Field(
        True,
        description=(
            "Merge small parts in the background; set it alike on all replicas. A table can turn it off for "
            "itself (property `compaction`)."
        ),
    )
    compaction_interval_s: Positive = Field(
        10.0,
        description=(
            "How often the agent that plans a table looks for parts to merge, unless some partition has "
            "compaction_parts_max of them before."
        ),
    )
    compaction_concurrency: Count = Field(1, description="Merges at once; each takes a SQL process.")
    compaction_parts_min: int = Field(
        8, ge=2, description="Parts of about one size in a partition that are worth a merge."
    )
    compaction_parts_max: Count = Field(500, description="Most parts of one merge.")
    compaction_bytes_max: Bytes = Field(512 << 20, description="Most bytes of the parts of one merge.")
    compaction_target_bytes: Bytes = Field(
        128 << 20,
        description=(
            "A part of this size is not merged any more, nor one of `part_bytes_max` or a third of "
            "`compaction_bytes_max`."
        ),
    )
    compaction_quiet_s: Positive = Field(
        600.0, description="In a partition that got no part for so long two parts are worth a merge."
    )
    compaction_heeds_after_s: Positive = Field(
        1.0,
        description="Compaction heeds transactions that have been open for so long: it merges no parts that "
        "one of them sees with parts that it does not see, so that they can still remove theirs.",
    )
    compaction_retry_wait_max_s: Positive = Field(
        60.0, description="Longest pause before a merge that gave way to others is tried again."
    )
    parts_delay_insert: Count = Field(
        1000, description="From so many parts of a partition on an insert into it waits."
    )
    parts_refuse_insert: Count = Field(
        3000, description="From so many parts of a partition on an insert into it is refused."
    )
    insert_delay_max_s: Positive = Field(
        2.0, description="Longest wait of an insert for each partition with too many parts."
    )
