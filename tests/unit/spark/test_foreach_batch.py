"""foreach_batch: a micro-batch becomes a transaction with a label, and is skipped if it was committed."""

from __future__ import annotations

import logging
import pickle
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from pyspark.errors import PySparkAttributeError

import tidelock.spark as tl
from tests.support.replicas.fake_agent import FakeCluster
from tidelock.client import Database
from tidelock.errors import BadRequestError, LabelExistsError
from tidelock.spark.streaming import QUERY_ID


class Context:
    """The context of a session that runs a job of a query."""

    def __init__(self, query: str | None) -> None:
        self._properties = {QUERY_ID: query}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        """Return a property that Spark has set."""
        return self._properties[name]


class ConnectSession:
    """A session of Spark Connect, which has no context."""

    @property
    def sparkContext(self) -> Context:  # noqa: N802 - Spark's name
        """Raise, as the real session does."""
        raise PySparkAttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED]")


def frame(query: str | None = "id-1") -> Any:
    """Return a DataFrame that has only the id of its query."""
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=Context(query)))


class Refusing:
    """A database that refuses the label of transactions, at their beginning or at their commit."""

    def __init__(self, error: LabelExistsError, *, at_commit: bool) -> None:
        self._error, self._at_commit = error, at_commit

    def begin(self, label: str, *, batch: int) -> Refusing:
        """Begin, or refuse."""
        del label, batch
        if not self._at_commit:
            raise self._error
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        raise self._error


def test_a_batch_is_a_transaction(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The transaction's label is the query's id or its given name, with the number of the batch."""
    seen: list[tuple[Any, int]] = []
    for name, expected in ((None, "id-1"), ("named", "named")):
        rows = frame()
        tl.foreach_batch(fake_db, lambda _, df, number: seen.append((df, number)), name)(rows, 7)
        posts = [request for request in fake_cluster["r1"].requests if request.method == "POST"]
        bodies = [request.json for request in posts if request.json]
        begun = [body for body in bodies if "label" in body][-1]
        assert (begun["label"], begun["batch"]) == (expected, 7)
        assert seen[-1] == (rows, 7)
    assert fake_cluster["r1"].count("POST /transactions/.*/commit") == 2


def test_an_error_of_the_function_rolls_back(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The transaction is rolled back, and the query ends with the error of the function."""
    error = KeyError("of the caller")

    def fail(*_: object) -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        tl.foreach_batch(fake_db, fail)(frame(), 1)
    assert caught.value is error
    assert fake_cluster["r1"].count("POST /transactions/.*/rollback") == 1


@pytest.mark.parametrize("at_commit", [False, True])
def test_a_batch_that_counts_already(at_commit: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A batch that was committed before raises no error; the log has its CSN."""
    error = LabelExistsError("batch 7 was committed before", label="id-1", batch=7, csn=42, tid="t")
    db = cast("Any", Refusing(error, at_commit=at_commit))
    with caplog.at_level(logging.INFO, "tidelock.spark.streaming"):
        tl.foreach_batch(db, lambda *_: None)(frame(), 7)
    assert "batch 7 of id-1 was committed before, at CSN 42" in caplog.text


@pytest.mark.parametrize(
    ("details", "message"),
    [
        ({"label": "id-1", "batch": 9, "csn": None}, "has gone back to an older checkpoint"),
        ({"label": "of the function's own", "batch": 7, "csn": 3}, "refused"),
        ({"label": "id-1", "csn": 3}, "refused"),
    ],
)
def test_what_is_no_repetition(details: dict[str, Any], message: str) -> None:
    """If a later batch was committed, or another label was refused, the error ends the query."""
    db = cast("Any", Refusing(LabelExistsError("refused", **details), at_commit=False))
    with pytest.raises(LabelExistsError, match=message) as caught:
        tl.foreach_batch(db, lambda *_: None)(frame(), 7)
    assert caught.value.details == details


@pytest.mark.parametrize("session", [ConnectSession(), SimpleNamespace(sparkContext=Context(None))])
def test_without_the_id_of_the_query(session: object) -> None:
    """On Spark Connect, or outside of a query, the query must be given a name."""
    db = cast("Any", Refusing(LabelExistsError("never", label="x"), at_commit=False))
    with pytest.raises(BadRequestError, match="give the query a name"):
        tl.foreach_batch(db, lambda *_: None)(cast("Any", SimpleNamespace(sparkSession=session)), 7)


def test_it_is_pickled_with_its_client(fake_db: Database) -> None:
    """The function can be pickled with its client, as Spark Connect does."""
    data = pickle.dumps(tl.foreach_batch(fake_db, print, "named"))
    again = pickle.loads(data)  # noqa: S301 - our own bytes
    assert again.query == "named"
    assert again.db.status() == fake_db.status()
    again.db.close()
