"""Which failures of a job of Spark a user has to bear."""

from __future__ import annotations

import re
from typing import Final

from chaos.session import BEGIN_AGAIN, GIVE_UP
from chaos.spark.job import SparkEndedError, SparkJobError
from tidelock import errors

_NAME: Final = re.compile(r"\b([A-Z][A-Za-z]+(?:Error|Exception))\b")
#: Errors of Spark that say that a query is wrong, whatever happens to replicas.
_WRONG_QUERIES: Final = frozenset({"AnalysisException", "ParseException"})
#: What a user may be told besides, in jobs of Spark: the lease of a job whose driver or home was away.
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
    for name in _NAME.findall(str(error)):
        kind: object = getattr(errors, name, None)
        told = kind if isinstance(kind, type) and issubclass(kind, errors.TidelockError) else None
        wrong = told is not None and not (told.retriable or issubclass(told, _BORNE))
        if wrong or name in _WRONG_QUERIES:
            raise UnbearableError(str(error)) from error
