"""What a workload lets a session of Spark do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class SparkJobError(Exception):
    """The job failed; the message is the one of the exception in the session."""


class SparkEndedError(Exception):
    """The driver has ended while it ran the job: nobody knows what became of it."""


class SparkSession(Protocol):
    """A session, as a job sees it."""

    #: Which of the sessions it is.
    number: int

    def call(self, job: str, **args: Any) -> Any:
        """Run a method of `chaos.spark.driver.Jobs`, and return its result.

        Raises:
            SparkJobError: It failed.
            SparkEndedError: The driver has ended.
        """


@dataclass(frozen=True, slots=True)
class SparkJob:
    """One job.

    Attributes:
        name: Its name: workload, and what it does.
        run: Runs it, and writes it into the history and the journal; SparkJobError and SparkEndedError are
            what it lets pass on.
    """

    name: str
    run: Callable[[SparkSession], None]
