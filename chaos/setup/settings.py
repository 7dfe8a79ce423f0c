"""The settings of the agents in chaos runs: they notice soon, react soon, and forget soon."""

from __future__ import annotations

from typing import Final

#: By the names of the fields; a workload may add to them.
SETTINGS: Final[dict[str, object]] = {
    "session_timeout_s": 4,
    "commit_timeout_s": 5,
    "undecided_check_s": 0.5,
    "member_refresh_s": 1,
    "progress_interval_s": 0.2,
    "retry_wait_max_s": 0.5,
    "blocked_after_s": 2,
    "reader_workers": 1,
    # Faults damage parts that have files of their own: those above this size.
    "inline_part_bytes_max": 4 << 10,
    "clock_check_interval_s": 1,
    "tick_interval_s": 2,
    # Rot is found by the first of these: a reader, the scrubber, or the comparison of states.
    # The history of a long run has 50,000 small parts, each of which counts as 4 KiB: two thirds of a minute.
    "scrub_bytes_per_s": 4 << 20,
    "scrub_interval_s": 60,
    "compare_interval_s": 20,
    "compaction_interval_s": 2,
    # Removed parts are collected while replicas are away and clone; a replica that is further behind than
    # the kept log clones, as a new one does.
    "horizon_interval_s": 1,
    "clean_interval_s": 5,
    "history_retention_s": 60,
    "unpinned_ttl_s": 60,
    "log_keep_records": 2_000,
    "check_invariants": True,
}
