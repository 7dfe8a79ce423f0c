"""Settings of an agent, read from flags, environment (``TIDELOCK_*``) and a file, in this order.

``docs/configuration.md`` is generated from this class, so the description of a field is its documentation.
Durations are in seconds, sizes in bytes.
"""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import ClassVar, Final

from pydantic import Field, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tidelock.replica_agent.config.compaction_settings import CompactionSettings
from tidelock.replica_agent.config.identity_settings import Bytes, Count, IdentitySettings, Positive
from tidelock.replica_agent.config.replication_settings import ReplicationSettings
from tidelock.type_text import DEPTH_MAX

#: The levels of the log, the most talkative first.
LOG_LEVELS: Final = ("debug", "info", "warning", "error")

#: Pairs of settings in which the first must not be above the second, and why.
_IN_ORDER = (
    ("record_bytes_max", "multi_bytes_max", "a record is sent inside one request"),
    ("inline_entries_bytes_max", "record_bytes_max", "entries that are not in a manifest are in a record"),
    ("inline_part_bytes_max", "push_bytes_max", "a part that travels inside pushes must fit one"),
    ("lease_s", "lease_max_s", "the default lease must be one that a client may ask for"),
    ("snapshot_ttl_s", "snapshot_ttl_max_s", "the default lease must be one that a client may ask for"),
    ("compaction_parts_min", "compaction_parts_max", "so many parts must fit one compaction"),
    ("parts_delay_insert", "parts_refuse_insert", "inserts wait before they are refused"),
    ("outcome_retention_s", "label_retention_s", "no outcome is kept for less than the others"),
    ("fence_timeout_s", "strike_timeout_s", "a replica is fenced long before it is struck"),
    ("log_keep_records", "max_records", "no replica is struck for records that are kept anyway"),
    ("log_keep_bytes", "max_records_bytes", "no replica is struck for records that are kept anyway"),
    ("outcome_retention_s", "commit_history_retention_s", "no outcome is kept for longer than its history"),
    ("outcome_retention_s", "stream_label_retention_s", "no outcome is kept for less than the others"),
)


class AgentSettings(IdentitySettings, ReplicationSettings, CompactionSettings, BaseSettings):
    """All settings of an agent. Unknown names are refused, with the known ones listed."""

    model_config = SettingsConfigDict(env_prefix="TIDELOCK_", extra="forbid", frozen=True)

    #: Set by :func:`~tidelock.replica_agent.config.loading.load`, since the file's name is itself a flag.
    config_file: ClassVar[ContextVar[Path | None]] = ContextVar("config_file", default=None)

    # -- ZooKeeper and the CSN log ---------------------------------------------------------------------------
    session_timeout_s: Positive = Field(
        10.0, description="ZooKeeper session timeout asked for; the server may clamp it."
    )
    request_timeout_s: Positive = Field(
        5.0, description="A ZooKeeper request without answer for so long is Unknown."
    )
    connect_timeout_s: Positive = Field(
        15.0, description="How long a start waits for its first ZooKeeper session."
    )
    record_bytes_max: Bytes = Field(
        384 * 1024,
        description=(
            "Largest commit record. By default it has room for a table of 2,000 columns with the "
            "longest names."
        ),
    )
    multi_bytes_max: int = Field(
        800_000,
        ge=1,
        le=1_000_000,
        description=(
            "Largest ZooKeeper request; a larger one is refused before it is sent. ZooKeeper drops the "
            "connection above its jute.maxbuffer, 1 MiB unless it is told otherwise."
        ),
    )
    inline_entries_bytes_max: Bytes = Field(
        32 * 1024,
        description="The parts that one transaction adds and removes go into a manifest above this.",
    )
    batch_tids_max: Count = Field(1000, description="Most transactions in one commit record.")
    queue_tids_max: Count = Field(
        10_000, description="Most sealed transactions that may wait for their commit."
    )
    read_ahead: int = Field(16, ge=1, le=64, description="Log records requested at once by the follower.")
    tick_interval_s: Positive = Field(
        60.0,
        description=(
            "If a shard commits nothing for so long, one replica writes a record without transactions, so "
            "that the log's time goes on. At 60 s these are 1,440 records a day, deleted as all others are."
        ),
    )
    clock_check_interval_s: Positive = Field(
        5.0,
        description=(
            "How often an agent asks its peers for the time. A clock that it has not heard of for three "
            "times as long has no say in the log's time."
        ),
    )
    clock_offset_max_s: Positive = Field(
        5.0,
        description=(
            "An agent whose wall clock is further off than most others says so in status, log and metrics. "
            "Its commits go on, and get their time from the other clocks."
        ),
    )

    # -- transactions ----------------------------------------------------------------------------------------
    lease_s: Positive = Field(60.0, description="Lease of a transaction when the client names none.")
    lease_max_s: Positive = Field(3600.0, description="Longest lease a client may ask for.")
    transactions_max: Count = Field(10_000, description="Most open transactions on this replica.")
    transaction_age_max_s: float = Field(
        24 * 3600.0,
        ge=0,
        description=(
            "Longest time that a transaction may be open, however often its lease is renewed: it holds the "
            "history of all tables. 0 = no bound."
        ),
    )
    tids_reserved_s: Positive = Field(
        60.0,
        description=(
            "How long a tid stays reserved for a client that has not used it. Clients use a block of tids "
            "for half of that."
        ),
    )
    tids_reserved_once_max: Count = Field(64, description="Most tids that one request reserves.")
    tids_reserved_max: Count = Field(
        100_000, description="Most reserved tids; each takes about 100 bytes of memory."
    )
    write_bytes_max: Bytes = Field(
        1 << 20, description="Largest transaction that may come as one request, in bytes of its body."
    )
    channel_requests_max: Count = Field(
        256, description="Requests of one channel that are carried out at once; beyond it, it is not read."
    )
    closed_kept_s: Positive = Field(
        600.0, description="How long a finished transaction still answers by its own state."
    )
    closed_max: Count = Field(
        100_000,
        description=(
            "Most finished transactions that still answer by their own state; each takes up to 200 bytes of "
            "memory, and one that failed its error besides, up to 512 bytes."
        ),
    )
    closed_shown_max: Count = Field(
        1000, description="Most finished transactions in a list of transactions; the last ones are shown."
    )
    token_ttl_s: Positive = Field(24 * 3600.0, description="Longest life of a token of a transaction.")
    staged_files_max: Count = Field(
        10_000,
        description=(
            "Most files that one transaction may have staged through the file system, and parts besides; "
            "those of aborted attempts count until they are deleted."
        ),
    )
    staged_bytes_max: Bytes = Field(1 << 40, description="Most bytes of them.")
    uploads_max: Count = Field(512, description="Most uploads at once; each may use 3 MiB of memory.")
    upload_check_memory_bytes: Bytes = Field(
        512 << 20, description="Memory that the check of an uploaded file may use, in a process of its own."
    )
    upload_check_timeout_s: Positive = Field(300.0, description="Longest check of one uploaded file.")
    import_dir: str = Field("", description="Folder of this machine whose files `import_files` links.")
    upload_spread: bool = Field(
        True,
        description=(
            "Whether files that are written to a transaction's folder are sent to all replicas in turn, "
            "whose api addresses every writer must reach; false: all come to its home."
        ),
    )
    upload_behind_bytes_max: Bytes = Field(
        2 << 30,
        description="Bytes that a home has still to fetch at which it takes all uploads itself.",
    )
    commit_timeout_s: Positive = Field(
        30.0, description="A commit that lacks copies, and gets no byte of them for so long, is refused."
    )
    head_turn_s: Positive = Field(
        1.0,
        description=(
            "A transaction whose commit was overtaken, so that it has to be validated again, holds back the "
            "other commits of its home at most so long."
        ),
    )
    locks_max: Count = Field(
        20_000, description="Most locks of one transaction: one for each part that it removes."
    )
    table_locks_max: Count = Field(
        100_000,
        description=(
            "Most locks of one table in ZooKeeper, those of removals included that some replica has not "
            "applied yet."
        ),
    )
    lock_wait_s: float = Field(
        0.0,
        ge=0,
        description=(
            "How long a statement waits for a lock that another transaction holds; 0 = it conflicts at once."
        ),
    )
    compaction_lock_wait_s: Positive = Field(
        10.0, description="How long a statement waits for a lock that a compaction holds, at least."
    )
    lock_sweep_interval_s: Positive = Field(
        5.0, description="How often locks that nobody needs any more are deleted."
    )
    commit_gather_s: Positive = Field(
        1.0,
        description="Longest time that a small commit waits for those on the way, so that it shares writes.",
    )
    insert_bytes_max: Bytes = Field(64 << 30, description="Largest body of one insert.")
    large_inserts_max: Count = Field(
        8,
        description=(
            "Inserts of more than inline_part_bytes_max at once; each may use row_group_bytes of memory."
        ),
    )
    encode_threads: Count = Field(
        2,
        description=(
            "Threads that encode the rows of one insert: its own, and others that all inserts share. Each of "
            "the others may use row_group_bytes of memory, too."
        ),
    )
    insert_chunks_ahead: Count = Field(
        8, description="Chunks of a body that may wait to be encoded; beyond it the client waits."
    )
    staged_memory_bytes_max: Bytes = Field(
        64 << 20, description="Small staged parts kept in memory; beyond it they are written out at once."
    )
    inline_part_bytes_max: Bytes = Field(
        1 << 20, description="Parts up to this size share pack files and travel inside pushes."
    )
    shared_parts_bytes_max: Bytes = Field(
        512 << 10,
        description=(
            "Rows, by their bytes in memory, of small transactions that commit together in shared parts."
        ),
    )
    landing_ahead_max: Count = Field(
        8,
        description="Departures of landing rows that are acknowledged and not yet committed; others wait.",
    )
    row_group_rows: Count = Field(1_000_000, description="Rows of a Parquet row group.")
    row_group_bytes: Bytes = Field(128 << 20, description="Arrow bytes after which a row group is closed.")
    cut_part_bytes_min: Bytes = Field(
        1 << 20,
        description=(
            "A part of this size or more is cut when some of its rows change: row groups without such rows "
            "are copied as they are."
        ),
    )
    part_bytes_max: Bytes = Field(1 << 30, description="A part is closed when it has grown to this size.")
    partitions_per_insert_max: Count = Field(1000, description="Most partitions that one insert may touch.")
    meta_bytes_max: Bytes = Field(1024, description="User metadata of a transaction, as JSON.")
    label_bytes_max: Bytes = Field(256, description="Longest label.")
    progress_bytes_max: Bytes = Field(4096, description="Longest progress that is kept with a label.")
    columns_max: Count = Field(2000, description="Most columns of a table.")
    nested_depth_max: Count = Field(
        16, le=DEPTH_MAX, description="Most types inside each other in a column; 1 = none is nested."
    )
    column_name_bytes_max: Bytes = Field(
        255, description="Longest name of a column, in UTF-8. Existing tables keep their names."
    )
    column_default_bytes_max: Bytes = Field(
        256,
        description=(
            "Longest default of a column, as text. Each row group of a file of before shows it, so it makes "
            "room in the footers of such files."
        ),
    )
    checks_max: Count = Field(64, description="Most checks of a table.")
    check_bytes_max: Bytes = Field(4096, description="Longest SQL of a check or a generated column.")
    dependents_max: Count = Field(
        16, description="Most tables that are derived from one table; each insert into it fills them all."
    )
    derived_depth_max: Count = Field(
        4, description="Most tables in a chain of derived tables; 1 = none is derived from a derived one."
    )
    definitions_max: Count = Field(
        1000, description="Most definitions of tables in one transaction, and most names that they look up."
    )

    # -- disk ------------------------------------------------------------------------------------------------
    disk_reserve_bytes: int = Field(
        256 << 20, ge=0, description="Free space below which rows, uploads and merges are refused; 0 = none."
    )
    disk_reserve_share: float = Field(
        0.05, ge=0, le=1, description="The reserve is at most this share of the disk, for small disks."
    )
    disk_floor_share: float = Field(
        0.25, ge=0, le=1, description="Share of the reserve below which pushes of peers are refused too."
    )

    # -- serving ---------------------------------------------------------------------------------------------
    reader_workers: Count = Field(2, description="Processes that serve parts.")
    reader_threads: Count = Field(
        8, description="Threads of one reader process that read files; a cold file makes one wait."
    )
    reader_restart_wait_max_s: Positive = Field(
        5.0, description="Longest pause before a reader process that keeps dying is started again."
    )
    bind_retry_s: Positive = Field(
        10.0, description="How long a start waits for a port that the readers of a killed agent still hold."
    )
    worker_start_timeout_s: Positive = Field(
        60.0, description="How long a reader or SQL process may take to start."
    )
    catch_up_wait_s: Positive = Field(
        60.0,
        description=(
            "After a start: how long the agent catches up before it takes new work although it is behind."
        ),
    )
    wait_bound_s: Positive = Field(
        5.0,
        description="How long a request waits for a CSN before it is answered 'standby'.",
    )
    read_wait_s: Positive = Field(
        1.0,
        description=(
            "How long a read of a file of a snapshot waits for its CSN before it is answered 'standby'. "
            "Meanwhile signs of life keep Spark from leaving."
        ),
    )
    read_chunk_bytes: Bytes = Field(
        1 << 20, description="Most bytes of a part that are read and verified at a time."
    )
    send_buffer_bytes: Bytes = Field(
        256 * 1024,
        description=(
            "Socket send buffer of the snapshot file system. Reads of Hadoop's client to the end of a file "
            "begin with 16 KiB, and get there as the client reads on."
        ),
    )
    listing_cache_entries: Count = Field(1000, description="Serialised listings kept by each reader process.")
    combined_part_bytes_max: int = Field(
        1 << 20,
        ge=0,
        le=1 << 20,
        description=(
            "Parts below this length, made by agents, are listed in a snapshot up to 64 as one Parquet file; "
            "0: each part is a file."
        ),
    )
    footer_cache_entries: Count = Field(
        20_000,
        description=(
            "Parts of whose footers each reader process remembers whether readers may use their hints about "
            "floats; also KiB of the footers of combined files that it remembers."
        ),
    )
    snapshot_ttl_s: Positive = Field(60.0, description="Lease of a snapshot when the client names none.")
    snapshots_max: Count = Field(10_000, description="Most snapshots that clients may hold at this replica.")
    tags_max: Count = Field(
        100, description="Most tags of the cluster; each keeps the history from its CSN on."
    )
    snapshot_ttl_max_s: Positive = Field(24 * 3600.0, description="Longest lease of a snapshot.")
    sql_workers: Count = Field(2, description="Processes for SQL over snapshots.")
    sql_memory_bytes: Bytes = Field(
        1 << 30, description="Memory of one SQL process before it spills or fails."
    )
    sql_engine_share: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="Part of sql_memory_bytes for the operators; the rest decodes parts and encodes rows.",
    )
    sql_temp_bytes: Bytes = Field(
        4 << 30,
        description="Disk of one SQL process for what outgrows its memory; beyond it a statement fails.",
    )
    sql_waiting_max: Count = Field(
        32, description="Statements that may wait for a SQL process; beyond it they are sent elsewhere."
    )
    sql_timeout_s: Positive = Field(300.0, description="Longest run of one SQL statement.")
    sql_stop_s: Positive = Field(
        1.0,
        description=("How long a SQL process may take to give up an unwanted statement; then it is ended."),
    )
    sql_threads: Count = Field(2, description="Threads of one SQL process.")
    log_answer_records_max: Count = Field(1000, description="Most records in one answer about the log.")
    changes_files_max: Count = Field(
        10_000, description="Most parts in one answer with change sets; more only for a single commit."
    )
    changes_bytes_max: Bytes = Field(
        1 << 30, description="Most bytes of the parts in one answer with change sets, likewise."
    )

    # -- process ---------------------------------------------------------------------------------------------
    drain_s: Positive = Field(10.0, description="After SIGTERM: how long running reads and commits may take.")
    history_retention_s: Positive = Field(
        24 * 3600.0,
        description=(
            "How long removed parts stay readable. A table's property `retention_s` may keep its own "
            "for longer."
        ),
    )
    horizon_interval_s: Positive = Field(
        10.0,
        description=(
            "How often horizon and tail are moved, and what they have passed is deleted. One replica moves "
            "them, the others look after it now and then."
        ),
    )
    unpinned_ttl_s: Positive = Field(
        600.0, description="How long a CSN that is read without a pin stays readable after the last read."
    )
    unpinned_max: Count = Field(
        1000, description="Most CSNs kept pinned because they are read without a pin."
    )
    log_keep_records: Count = Field(
        10_000, description="Commit records kept in ZooKeeper although every replica has applied them."
    )
    log_keep_bytes: Bytes = Field(
        64 << 20,
        description="ZooKeeper's memory for the records that log_keep_records keeps; large ones are fewer.",
    )
    strike_timeout_s: Positive = Field(
        3600.0,
        description=(
            "A replica that is silent, or applies nothing while others commit, for so long is struck: it "
            "holds nothing back any more, and clones before it serves. Never so that too few are left."
        ),
    )
    max_records: Count = Field(
        100_000, description="A replica that holds back more records in ZooKeeper is struck."
    )
    max_records_bytes: Bytes = Field(
        128 << 20,
        description="A replica that holds back more of ZooKeeper's memory, as estimated, is struck.",
    )
    collect_batch_parts: Count = Field(200, description="Most parts deleted in one catalog transaction.")
    outcome_retention_s: Positive = Field(24 * 3600.0, description="How long outcomes are kept.")
    label_retention_s: Positive = Field(
        30 * 24 * 3600.0,
        description="How long a label of a single run is kept, with the outcome of its transaction. Each one "
        "is a znode. A run that comes back later counts as new work.",
    )
    stream_label_retention_s: Positive = Field(
        90 * 24 * 3600.0,
        description="How long the label of a streaming query is kept after its last batch, with that one's "
        "outcome. A query that comes back later is a new one.",
    )
    commit_history_retention_s: Positive = Field(
        90 * 24 * 3600.0,
        description="How long `system.history` keeps what each commit has changed in each table.",
    )
    commit_history_rows_max: Count = Field(
        1_000_000,
        description="Most rows of `system.history`, about 200 bytes of disk each; beyond it the oldest go.",
    )
    clean_interval_s: Positive = Field(
        60.0, description="How often deleted files and outcomes older than their retention are cleared away."
    )
    audit_settle_s: Positive = Field(15.0, description="An audit reports what has lasted for so long.")
    audit_timeout_s: Positive = Field(3600.0, description="Longest run of an audit that reads all bytes.")
    audit_bytes_per_s: Bytes = Field(128 << 20, description="Most bytes that an audit reads in a second.")
    audit_findings_max: Count = Field(1000, description="Most findings in the answer to an audit.")
    scrub_bytes_per_s: int = Field(
        8 << 20,
        ge=0,
        description="Most bytes of parts that are read in a second to find rot before a reader does; 0 = "
        "none are. A part that is wrong is fetched again.",
    )
    scrub_interval_s: Positive = Field(
        7 * 86_400.0,
        description="From the begin of one reading of all parts to that of the next; if it takes longer than "
        "that, the next one follows at once.",
    )
    compare_interval_s: Positive = Field(
        600.0,
        description="How often replicas compare what they show at one CSN. One that a majority of the "
        "members contradicts stops, and clones.",
    )
    check_invariants: bool = Field(
        False,
        description="Check all invariants of the state machines of commits, log and copies after every step, "
        "not only those that take constant time. Either way an agent that finds one broken stops, with the "
        "last steps of the machine in its log.",
    )
    log_level: str = Field(
        "info", pattern=f"^({'|'.join(LOG_LEVELS)})$", description="Lowest level that is logged."
    )
    log_format: str = Field("json", pattern="^(json|text)$", description="Form of the log lines.")
    catalog_jobs_max: Count = Field(
        10_000, description="Most writes that wait for the catalog; as many requests more wait for a place."
    )
    catalog_wait_s: Positive = Field(
        10.0, description="How long a request waits for a place among the writes of the catalog."
    )
    catalog_cache_bytes: Bytes = Field(32 << 20, description="SQLite page cache.")
    catalog_write_behind: bool = Field(
        default=True,
        description="Do not force what the log of commits or a pack says again after a power cut.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: flags, then environment, then the file."""
        del dotenv_settings, file_secret_settings
        file = TomlConfigSettingsSource(settings_cls, toml_file=cls.config_file.get())
        return init_settings, env_settings, file

    @model_validator(mode="after")
    def _fit_together(self) -> AgentSettings:
        for small, large, why in _IN_ORDER:
            if getattr(self, small) > getattr(self, large):
                msg = (
                    f"{small}={getattr(self, small)} is above {large}={getattr(self, large)}, but {why}; "
                    "change one of them"
                )
                raise ValueError(msg)
        return self
