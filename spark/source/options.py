"""Options of the data source: their uses, values and meanings. Pure.

Names are spelt as in the documentation; upper and lower case are equal, as in Spark. An unknown option is an
error, since Spark would ignore it: a misspelt `csnAsOf` would read another snapshot than the user meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from tidelock.client.values.arguments import milliseconds
from tidelock.errors import BadRequestError
from tidelock.wire.tags import is_tag_name

#: Options with a default from an environment variable, on the driver and on executors.
ENVIRONMENT: Final[Mapping[str, str]] = {"url": "TIDELOCK_URL", "token": "TIDELOCK_SECRET"}
#: The option that `load(...)` and `save(...)` set; it names the table.
_PATH: Final = "path"
#: Prefix of the options that Spark's catalog of tables stores.
_STORED: Final = "option."
_SIZE: Final = re.compile(r"(\d+)([kmg]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Use(Enum):
    """A use of the data source, by the name of the method of a session or DataFrame."""

    READ = "read"
    WRITE = "write"
    READ_STREAM = "readStream"
    WRITE_STREAM = "writeStream"


class Begin(Enum):
    """The beginning of a streaming query that has no checkpoint yet."""

    #: Begin with all existing rows, and continue with the rows that commits add.
    EARLIEST = "earliest"
    #: Begin with the next commit.
    LATEST = "latest"


_ALL: Final = frozenset(Use)
_READS: Final = frozenset({Use.READ, Use.READ_STREAM})
_STREAM: Final = frozenset({Use.READ_STREAM})
_WRITES: Final = frozenset({Use.WRITE, Use.WRITE_STREAM})


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("some text")
    return text


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII):
        raise ValueError("a whole number, not negative")
    return int(text)


def _csn_or_tag(text: str) -> int | str:
    if is_tag_name(text.strip()):
        return text.strip()
    try:
        return _number(text)
    except ValueError:
        raise ValueError("a CSN, or the name of a tag") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("a number of seconds above 0")
    return value


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError("a size above 0, e.g. 134217728 or 128m")
    return int(match[1]) * _UNITS[match[2].lower()]


def _switch(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.lower() == "true"


def _instant(text: str) -> int:
    """Return milliseconds since 1970."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return milliseconds(text)
    except BadRequestError as error:
        raise ValueError(
            "a time with its zone, e.g. 2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from error


def _count(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()) or not int(text):
        raise ValueError("a whole number above 0")
    return int(text)


def _begin(text: str) -> Begin:
    try:
        return Begin(text.strip().lower())
    except ValueError:
        raise ValueError(" or ".join(begin.value for begin in Begin)) from None


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: Name of the option, as it is documented.
        uses: Uses of the data source for which the option is valid.
        parse: Parses the value; the text of its ValueError says what was expected.
    """

    name: str
    uses: frozenset[Use]
    parse: Callable[[str], Any] = _text


OPTIONS: Final = (
    Option("table", _ALL),
    Option("url", _ALL),
    Option("token", _ALL),
    Option("replica", _ALL),
    Option("failover", _READS, _switch),
    Option("csnAsOf", frozenset({Use.READ}), _csn_or_tag),
    Option("timestampAsOf", frozenset({Use.READ}), _instant),
    Option("where", frozenset({Use.READ})),
    Option("partitionBytes", _READS, _size),
    Option("leaseSeconds", _ALL, _seconds),
    Option("startingCsn", _STREAM, _number),
    Option("startingTimestamp", _STREAM, _instant),
    Option("startingOffsets", _STREAM, _begin),
    Option("maxFilesPerTrigger", _STREAM, _count),
    Option("maxBytesPerTrigger", _STREAM, _size),
    Option("readChangeFeed", _STREAM, _switch),
    Option("skipChangeCommits", _STREAM, _switch),
    # Spark's own options, which it passes on with the others.
    Option("checkpointLocation", frozenset({Use.WRITE_STREAM})),
    Option("queryName", frozenset({Use.WRITE_STREAM})),
    Option("label", frozenset({Use.WRITE})),
    Option("overwritePartitions", frozenset({Use.WRITE}), _switch),
)
_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A table of a cluster, and the agents through which it is reached.

    Attributes:
        table: `name` or `namespace.name`.
        urls: URLs of agents in the order in which they are tried, or `zk://...`.
        token: The shared secret; not in `repr`.
        replica: Id of the preferred replica of a read, or of the home of a write; None = any.
    """

    table: str
    urls: tuple[str, ...]
    token: str | None = field(repr=False)
    replica: str | None

    @property
    def scheme(self) -> str:
        """`http` or `https`, the same for all agents."""
        return "https" if self.urls[0].startswith("https:") else "http"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a batch read; `csn` (or a tag) and `at_ms` None = the newest CSN."""

    target: TableTarget
    csn: int | str | None
    at_ms: int | None
    where: str | None
    failover: bool
    partition_bytes: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a batch write."""

    target: TableTarget
    label: str | None
    overwrite_partitions: bool
    lease_s: float


#: Default of `partitionBytes`, equal to the default of spark.sql.files.maxPartitionBytes.
PARTITION_BYTES: Final = 128 << 20
#: Longest time from planning to the first read of a task, and between reads of a slow task, in seconds.
READ_LEASE_S: Final = 600.0
#: Longest time until the first task begins to write, which is after all shuffles, and from the end of the
#: last task to the commit, in seconds. Tasks renew the lease while they write.
WRITE_LEASE_S: Final = 1800.0


def check(options: Mapping[str, str], uses: Iterable[Use] = Use) -> None:
    """Raise BadRequestError for an option that does not exist, or is not valid for any of these uses."""
    wanted = frozenset(uses)
    for key in options:
        option = _BY_KEY.get(key.lower())
        if key.lower() == _PATH:
            continue
        if key.lower().startswith(_STORED):
            raise BadRequestError(
                "CREATE TABLE ... USING tidelock is not supported: Spark's catalog would store the options, "
                "including the secret; use CREATE TEMPORARY VIEW ... USING tidelock OPTIONS (...)"
            )
        if option is None:
            valid = [candidate.name for candidate in OPTIONS if candidate.uses & wanted]
            near = difflib.get_close_matches(key.lower(), [name.lower() for name in valid], 1, 0.6)
            hint = f"; did you mean {_BY_KEY[near[0]].name}?" if near else "."
            raise BadRequestError(f"tidelock has no option {key!r}{hint} Its options: {', '.join(valid)}")
        if not option.uses & wanted:
            raise BadRequestError(
                f"option {option.name} is for {_names(option.uses)}, and this is {_names(wanted)}; omit it"
            )


def _names(uses: Iterable[Use]) -> str:
    return ", ".join(sorted(use.value for use in uses))


def streams(options: Mapping[str, str]) -> bool:
    """Return whether an option is valid for a streaming read only."""
    return any(_BY_KEY[key.lower()].uses == _STREAM for key in options if key.lower() in _BY_KEY)


class CheckedOptions:
    """The options of one use, checked.

    Args:
        options: The options that Spark passes on.
        use: The use of the data source.
        environ: Environment variables of the process.

    Raises:
        BadRequestError: An option does not exist, is not valid for this use, or has a wrong value.
    """

    def __init__(self, options: Mapping[str, str], use: Use, environ: Mapping[str, str]) -> None:
        check(options, {use})
        self._texts = {key.lower(): value for key, value in options.items()}
        self._environ = environ

    def get(self, name: str, default: Any = None) -> Any:
        """Return an option's value, or a default."""
        option = _BY_KEY[name.lower()]
        text = self._texts.get(name.lower())
        if text is None:
            return default
        try:
            return option.parse(text)
        except ValueError as error:
            shown = "..." if name == "token" else repr(text)
            raise BadRequestError(f"option {option.name} is {shown}; expected {error}") from error

    def target(self) -> TableTarget:
        """Return the table and its cluster."""
        table = self.get("table", self._texts.get(_PATH))
        if not table:
            raise BadRequestError("option table is missing: give the name of the table, e.g. sales.orders")
        url = self.get("url") or self._environ.get(ENVIRONMENT["url"])
        if not url:
            raise BadRequestError(
                f"option url is missing, and {ENVIRONMENT['url']} is not set: give the address of an agent, "
                "e.g. http://127.0.0.1:8801, or several addresses separated by commas"
            )
        urls = (url,) if url.startswith("zk://") else tuple(part.strip() for part in url.split(","))
        token = self.get("token") or self._environ.get(ENVIRONMENT["token"]) or None
        return TableTarget(table, urls, token, self.get("replica"))


def read_options(options: Mapping[str, str], environ: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read.

    Raises:
        BadRequestError: See :class:`CheckedOptions`; or both `csnAsOf` and `timestampAsOf` are given.
    """
    checked = CheckedOptions(options, Use.READ, environ)
    csn, at_ms = checked.get("csnAsOf"), checked.get("timestampAsOf")
    if csn is not None and at_ms is not None:
        raise BadRequestError("options csnAsOf and timestampAsOf name two snapshots; give one of them")
    return ReadOptions(
        checked.target(),
        csn,
        at_ms,
        checked.get("where"),
        checked.get("failover", True),
        checked.get("partitionBytes", PARTITION_BYTES),
        checked.get("leaseSeconds", READ_LEASE_S),
    )


def write_options(options: Mapping[str, str], environ: Mapping[str, str]) -> WriteOptions:
    """Return the options of a batch write.

    Raises:
        BadRequestError: See :class:`CheckedOptions`.
    """
    checked = CheckedOptions(options, Use.WRITE, environ)
    return WriteOptions(
        checked.target(),
        checked.get("label"),
        checked.get("overwritePartitions", False),
        checked.get("leaseSeconds", WRITE_LEASE_S),
    )
