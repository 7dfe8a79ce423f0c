"""A WebHDFS client that writes as Hadoop's does, and Spark's committer on top of it."""

from __future__ import annotations

import http.client
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.replicas.readers import Answer, send
from tests.support.waiting import TIMEOUT_S, eventually

JOB = "00000000-0000-4000-8000-000000000001"


def parquet(table: pa.Table, **options: Any) -> bytes:
    """Return a file as Spark writes it: without an Arrow schema, decimals as integers."""
    sink = io.BytesIO()
    layout = {"store_schema": False, "store_decimal_as_integer": True, "compression": "snappy"}
    pq.write_table(table, sink, **(layout | options))
    return sink.getvalue()


def file_name(task: int = 0, job: str = JOB) -> str:
    """Return the name of a task's file."""
    return f"part-{task:05d}-{job}-c000.snappy.parquet"


def place(task: int, attempt: int = 0) -> str:
    """Return the path of the file of a task attempt."""
    return f"_temporary/0/_temporary/attempt_1_m_{task:06d}_{attempt}/{file_name(task)}"


@dataclass(frozen=True)
class Folder:
    """A folder by its URL, from `tx.path`. With ``to`` (host:port) files are sent to that replica."""

    url: str
    to: str | None = None

    @property
    def address(self) -> str:
        """``host:port`` of the file system."""
        return urlsplit(self.url).netloc

    @property
    def path(self) -> str:
        """The path in the file system."""
        return urlsplit(self.url).path

    def ask(self, method: str, op: str, place: str = "", **query: Any) -> Answer:
        """Run an operation; names in the path are percent-encoded."""
        fields = "".join(f"&{name}={quote(str(value), safe='')}" for name, value in query.items())
        place = f"/{quote(place)}" if place else ""
        return send(self.address, method, f"/webhdfs/v1{self.path}{place}?op={op}{fields}")

    def done(self, method: str, op: str, place: str = "", **query: Any) -> bool:
        """Run an operation whose answer is a boolean, and return it."""
        answer = self.ask(method, op, place, **query)
        assert answer.status == 200, answer.body
        return bool(answer.json()["boolean"])

    def exists(self, place: str = "") -> bool:
        """Return whether a file or folder exists."""
        return self.ask("GET", "GETFILESTATUS", place).status == 200

    def names(self, place: str) -> list[str]:
        """Return the names of the entries of a folder."""
        listed = self.ask("GET", "LISTSTATUS", place).json()["FileStatuses"]["FileStatus"]
        return [entry["pathSuffix"] for entry in listed]

    def create(
        self,
        place: str,
        data: bytes | Iterable[bytes] = b"",
        *,
        overwrite: bool = False,
        to: str | None = None,
    ) -> Answer:
        """Write a file by both requests and return the last answer. With `to` as :meth:`redirect`."""
        answer = self.redirect(place, overwrite=overwrite, to=to or self.to)
        if answer.status != 307:
            return answer
        location = urlsplit(answer.headers["Location"])
        return send(location.netloc, "PUT", f"{location.path}?{location.query}", data)

    def redirect(self, place: str, *, overwrite: bool = False, to: str | None = None) -> Answer:
        """Send the first request; with `to` (host:port) repeat it until it is redirected to that replica."""

        def redirected() -> Answer | None:
            answer = self.ask("PUT", "CREATE", place, overwrite=str(overwrite).lower(), permission=644)
            limited = answer.status == 307 and to is not None
            return None if limited and urlsplit(answer.headers["Location"]).netloc != to else answer

        answer = eventually(redirected, what=f"a redirect to {to}")
        assert answer is not None
        return answer

    def rename(self, source: str, target: str) -> Answer:
        """Move a file or folder."""
        return self.ask("PUT", "RENAME", source, destination=f"{self.path}/{target}")

    def refusal(self, method: str = "PUT", op: str = "MKDIRS", place: str = "_temporary/0") -> str:
        """Return the message of an operation's refusal: an access error, which no setting of Spark hides."""
        answer = self.ask(method, op, place, recursive="true")
        assert (answer.status, answer.exception) == (403, "AccessControlException")
        return str(answer.json()["RemoteException"]["message"])

    def setup(self) -> None:
        """Make the committer's request before the first task."""
        assert self.done("PUT", "MKDIRS", "_temporary/0", permission=755)

    def write_task(
        self,
        files: Mapping[str, bytes | Iterable[bytes]],
        task: int = 0,
        attempt: int = 0,
        job: str = JOB,
    ) -> str:
        """Write the files of a task attempt, by partition, and return the attempt's folder."""
        folder = f"_temporary/0/_temporary/attempt_1_m_{task:06d}_{attempt}"
        for partition, data in files.items():
            answer = self.create("/".join(filter(None, (folder, partition, file_name(task, job)))), data)
            assert answer.status == 201, answer.body
        return folder

    def commit_task(self, folder: str, task: int = 0) -> None:
        """Commit a task as version 1 of the committer does."""
        assert self.exists(folder)
        assert self.rename(folder, f"_temporary/0/task_1_m_{task:06d}").json() == {"boolean": True}

    def commit_job(self) -> Answer:
        """Move the tasks' files to their paths, clean up, write the mark; return the answer to the mark."""
        self.close_job()
        return self.create("_SUCCESS", overwrite=True)

    def close_job(self) -> None:
        """Make the requests of the job's commit that precede the mark."""
        for task in self.names("_temporary/0"):
            if task != "_temporary":
                self._merge(f"_temporary/0/{task}", "")
        assert self.done("DELETE", "DELETE", "_temporary", recursive="true")

    def _merge(self, source: str, target: str) -> None:
        for name in self.names(source):
            inner, place = f"{source}/{name}", f"{target}/{name}".lstrip("/")
            if self.exists(place):
                self._merge(inner, place)
            else:
                assert self.rename(inner, place).json() == {"boolean": True}

    def write(self, files: Mapping[str, bytes | Iterable[bytes]], job: str = JOB) -> Answer:
        """Write and commit a job of one task; return the answer to the mark."""
        self.setup()
        self.commit_task(self.write_task(files, job=job))
        return self.commit_job()


def commit_task(folder: Folder, task: int, attempt: int = 0) -> None:
    """Commit a task whose attempt has written its file."""
    folder.commit_task(f"_temporary/0/_temporary/attempt_1_m_{task:06d}_{attempt}", task)


class HalfWritten:
    """An upload that has sent half of its file."""

    def __init__(self, folder: Folder, task: int = 0, *, to: str | None = None) -> None:
        self.attempt = f"_temporary/0/_temporary/attempt_1_m_{task:06d}_7"
        answer = folder.redirect(f"{self.attempt}/{file_name(task)}", to=to or folder.to)
        location = urlsplit(answer.headers["Location"])
        self._connection = http.client.HTTPConnection(location.netloc, timeout=TIMEOUT_S)
        self._connection.putrequest("PUT", f"{location.path}?{location.query}")
        self._connection.putheader("Transfer-Encoding", "chunked")
        self._connection.endheaders()
        self.send(b"x" * 100_000)
        eventually(lambda: folder.exists(self.attempt), what="the upload")

    def send(self, data: bytes) -> None:
        """Send more bytes of the file."""
        self._connection.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> int:
        """Send the rest and return the status of the answer, 0 for no answer."""
        try:
            self.send(b"y")
            self._connection.send(b"0\r\n\r\n")
            return self._connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            self._connection.close()
