"""Bodies of the WebHDFS REST protocol (Hadoop 3.5, "WebHDFS REST API"), as far as clients need them. Pure.

Bodies are put together as bytes: a listing of 20,000 parts through ``json.dumps`` of nested dicts costs
several times as much.
"""

from __future__ import annotations

import json
from http import HTTPStatus

from tidelock.errors import StandbyError, TidelockError
from tidelock.replica_agent.readers.paths import NoSuchPathError

#: Reported for every file. Spark splits by its own settings; with a whole part in one block each part has one
#: location.
BLOCK_SIZE = 128 << 20
OWNER = "tidelock"
#: A FileStatus object: time, length, time, and the name as JSON.
_FILE_ENTRY = (
    f'{{"accessTime":%d,"blockSize":{BLOCK_SIZE},"group":"{OWNER}","length":%d,"modificationTime":%d,'
    f'"owner":"{OWNER}","pathSuffix":%s,"permission":"444","replication":1,"type":"FILE"}}'
)


def refusal(error: Exception) -> tuple[int, bytes]:
    """Return status and body for an error; the Java class decides what Spark makes of it.

    Seen with Spark 3.5 and 4.3: FileNotFoundException lists as an empty table and is swallowed under
    ignoreMissingFiles, any other IOException or RuntimeException is swallowed under ignoreCorruptFiles.
    AccessControlException fails in every mode, so it is the answer to everything that is not certain to be
    one of the other two.
    """
    match error:
        case NoSuchPathError():
            status, java_class = HTTPStatus.NOT_FOUND, "java.io.FileNotFoundException"
        case StandbyError():
            status, java_class = HTTPStatus.FORBIDDEN, "org.apache.hadoop.ipc.StandbyException"
        case _:
            status, java_class = HTTPStatus.FORBIDDEN, "org.apache.hadoop.security.AccessControlException"
    fields: dict[str, object] = {"exception": java_class.rpartition(".")[2], "javaClassName": java_class}
    if isinstance(error, TidelockError):
        # Spark shows the message alone; the name of the error is that of docs/transactions.md. Hadoop's
        # clients skip the last field, from which those of Tidelock make the error again.
        fields["message"] = f"{type(error).__name__}: {error}"
        fields["tidelock"] = error.to_wire()
    else:
        fields["message"] = str(error)
    return status, json.dumps({"RemoteException": fields}).encode()


def file_entry(suffix: str, length: int, time_ms: int) -> bytes:
    """Return the FileStatus object of a file."""
    return (_FILE_ENTRY % (time_ms, length, time_ms, json.dumps(suffix))).encode()


def folder_entry(suffix: str) -> bytes:
    """Return the FileStatus object of a folder. Folders belong to a snapshot and have no time."""
    return (
        f'{{"accessTime":0,"blockSize":0,"group":"{OWNER}","length":0,"modificationTime":0,"owner":"{OWNER}",'
        f'"pathSuffix":{json.dumps(suffix)},"permission":"555","replication":0,"type":"DIRECTORY"}}'
    ).encode()


def file_status(entry: bytes) -> bytes:
    """Return the answer to GETFILESTATUS."""
    return b'{"FileStatus":' + entry + b"}"


def file_statuses(entries: list[bytes]) -> bytes:
    """Return the answer to LISTSTATUS."""
    return b'{"FileStatuses":{"FileStatus":[' + b",".join(entries) + b"]}}"


def directory_listing(statuses: bytes) -> bytes:
    """Return the answer to LISTSTATUS_BATCH: the whole listing as the only batch."""
    return b'{"DirectoryListing":{"partialListing":' + statuses + b',"remainingEntries":0}}'


def block_locations(length: int, host: str, port: int) -> bytes:
    """Return the answer to GETFILEBLOCKLOCATIONS: one block, on this replica only (rule snapshot-folders)."""
    block = {
        "offset": 0,
        "length": length,
        "corrupt": False,
        "hosts": [host],
        "names": [f"{host}:{port}"],
        "cachedHosts": [],
        "storageTypes": ["DISK"],
        "topologyPaths": [f"/default-rack/{host}:{port}"],
    }
    return _json({"BlockLocations": {"BlockLocation": [block] if length else []}})


def located_blocks(length: int) -> bytes:
    """Return the answer to GET_BLOCK_LOCATIONS; its client (Hadoop 3.3, Spark 3.5) accepts an empty list."""
    fields: dict[str, object] = {
        "fileLength": length,
        "isLastBlockComplete": True,
        "isUnderConstruction": False,
        "lastLocatedBlock": None,
        "locatedBlocks": [],
    }
    return _json({"LocatedBlocks": fields})


def content_summary(folders: int, files: int, length: int) -> bytes:
    """Return the answer to GETCONTENTSUMMARY."""
    fields: dict[str, object] = {
        "directoryCount": folders,
        "fileCount": files,
        "length": length,
        "quota": -1,
        "spaceConsumed": length,
        "spaceQuota": -1,
        "typeQuota": {},
    }
    return _json({"ContentSummary": fields})


def delegation_token() -> bytes:
    """Return "no token": Kerberos clients then continue without one, if their fallback setting allows it."""
    return _json({"Token": None})


def done_answer(*, done: bool) -> bytes:
    """Return the answer to MKDIRS, RENAME and DELETE."""
    return _json({"boolean": done})


def path_answer(path: str) -> bytes:
    """Return the answer to GETHOMEDIRECTORY."""
    return _json({"Path": path})


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
