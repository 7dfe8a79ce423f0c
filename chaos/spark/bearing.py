"""Tells failures of Spark jobs that a user repeats from those that the run must report."""

from __future__ import annotations

import re
from typing import Final, TypeGuard

from chaos.clients.session import BEGIN_AGAIN, GIVE_UP
from chaos.spark.job import SparkEndedError, SparkJobError
from tidelock import errors

#: The error of a session at the beginning of its message, or one in it that names its module, as the last
#: line of a traceback does. Other lines of a traceback are code, which names errors that did not occur. A
#: `RefusedError` tells the error of the agent behind its own name.
_NAME: Final = re.compile(
    r"(?:\A|\btidelock\.errors\.)(?:RefusedError: )?([A-Z][A-Za-z]+(?:Error|Exception))\b"
)
#: Errors that say that a query is wrong, or a job has found something wrong, whatever happens to replicas.
_WRONG_QUERIES: Final = frozenset({"AnalysisException", "ParseException", "AssertionError"})
#: Errors that end a job, and not its next run: its driver, its home or the network was away for too long.
_BORNE: Final = (
    errors.SnapshotTooOldError,
    errors.TokenFinishedError,
    errors.UnsealedWriteError,
    errors.CommitUnknownError,
    *BEGIN_AGAIN,
    *GIVE_UP,
)


class UnbearableError(Exception):
    """A job of Spark has failed in a way that no user should see."""


def require_bearable(error: SparkJobError | SparkEndedError) -> None:
    """Raise UnbearableError unless a user has to bear the failure: the job is simply run again."""
    if isinstance(error, SparkEndedError):
        return
    names = _NAME.findall(str(error))
    told = [kind for name in names if _of_tidelock(kind := getattr(errors, name, None))]
    # Spark wraps the errors of a data source into one of its own, which then says nothing by itself.
    wrong = (
        not all(kind.retriable or issubclass(kind, _BORNE) for kind in told)
        if told
        else any(name in _WRONG_QUERIES for name in names)
    )
    if wrong:
        raise UnbearableError(str(error)) from error


def _of_tidelock(kind: object) -> TypeGuard[type[errors.TidelockError]]:
    return isinstance(kind, type) and issubclass(kind, errors.TidelockError)
