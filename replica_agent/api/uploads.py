"""Routes of writes through the file system: WebHDFS below /transactions/<token>, tokens, and the seal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import quote, urlencode

import msgspec
import structlog
from aiohttp import web

from tidelock.csnlog.core.ids import TableId
from tidelock.errors import BadRequestError, TidelockError
from tidelock.replica_agent.api.bearer import shows_life
from tidelock.replica_agent.api.http import answer, body, number
from tidelock.replica_agent.readers import hdfs
from tidelock.replica_agent.readers.disconnects import is_waiting
from tidelock.replica_agent.readers.paths import NoSuchPathError, RequestTarget, parse_target
from tidelock.replica_agent.services.uploads import ONE_FILE, UploadService
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.transactions.staging_area import Entry, replaces
from tidelock.replica_agent.transactions.staging_paths import (
    PathKind,
    StagingPath,
    job_folder,
    kind_of,
    text_of,
)
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replica_agent.uploads.local_files import LocalFile
from tidelock.replica_agent.uploads.redirect import UPLOADS
from tidelock.replica_agent.uploads.tokens import Right, TokenClaims
from tidelock.token_text import redact
from tidelock.wire.ids import TableName
from tidelock.wire.statements import ReplaceRequest, RowChanges
from tidelock.wire.transactions import Confirmed, SealRequest, TokenAnswer, TokenRequest

#: Name of the route that is opened by a token, without the shared secret.
OPEN_ROUTE = "writes"
#: ``/webhdfs/v1/transactions/<token>``
_BASE = ("webhdfs", "v1", "transactions")
#: The length of the file that cannot be opened. Spark opens no file that is too short for Parquet.
_SHOWN_BYTES = 1024

_log = structlog.get_logger("writes")


class WriteRoutes:
    """Handlers of writes through the file system."""

    def __init__(self, service: UploadService) -> None:
        self._service = service
        self._operations: dict[tuple[str, str], Callable[[_Asked], Awaitable[web.Response]]] = {
            ("GET", "GETFILESTATUS"): self._status,
            ("GET", "LISTSTATUS"): self._list,
            ("GET", "GETFILEBLOCKLOCATIONS"): self._blocks,
            ("GET", "GET_BLOCK_LOCATIONS"): self._blocks_of_3_5,
            ("GET", "GETDELEGATIONTOKEN"): self._delegation_token,
            ("GET", "GETHOMEDIRECTORY"): self._home,
            ("PUT", "MKDIRS"): self._make_folder,
            ("PUT", "CREATE"): self._create,
            ("PUT", "RENAME"): self._rename,
            ("PUT", "SETPERMISSION"): self._accept,
            ("PUT", "SETOWNER"): self._accept,
            ("PUT", "SETTIMES"): self._accept,
            ("PUT", "SETREPLICATION"): self._accept_replication,
            ("DELETE", "DELETE"): self._delete,
        }

    def _find(self, request: web.Request) -> Transaction:
        return self._service.transactions.find(request.match_info["tid"], sign_of_life=shows_life(request))

    async def token(self, request: web.Request) -> web.Response:
        """Issue a token for an open transaction, and return the folder that it opens."""
        tx, asked = self._find(request), await body(request, TokenRequest)
        tables = None if asked.tables is None else [full_name(name) for name in asked.tables]
        made = self._service.tokens.give(tx, asked.rights, tables, asked.ttl_s)
        url = f"webhdfs://{self._service.tokens.member.data}/transactions/{made.token}"
        return answer(TokenAnswer(made.token, made.expires_s, url), 201)

    async def seal(self, request: web.Request) -> web.Response:
        """Seal the files of a table whose committer leaves no _SUCCESS, or only the named files."""
        asked = await body(request, SealRequest)
        self._service.admit_seal()
        tx = self._find(request)
        table = self._service.table(tx, full_name(request.match_info["table"]))
        places = [tuple(file.split("/")) for file in asked.files]
        return answer(await self._service.seal(tx, table, asked.job, places))

    async def replace(self, request: web.Request) -> web.Response:
        """Take the parts of files out of a table, for a job that writes what remains of their rows."""
        asked, tx = await body(request, ReplaceRequest), self._find(request)
        return answer(await self._service.replace(tx, full_name(request.match_info["table"]), asked.files))

    async def replaced(self, request: web.Request) -> web.Response:
        """Seal the job that has written what remains of the rows of parts that were taken."""
        asked = await body(request, RowChanges)
        self._service.admit_seal()
        tx = self._find(request)
        table = self._service.table(tx, full_name(request.match_info["table"]))
        return answer(await self._service.seal_change(tx, table, asked))

    async def confirm(self, request: web.Request) -> web.Response:
        """Let a job count that was sealed by its mark."""
        tx = self._find(request)
        table = self._service.table(tx, full_name(request.match_info["table"]))
        return answer(Confirmed(await self._service.confirm(tx, table)))

    # -- WebHDFS -------------------------------------------------------------------------------------------

    async def webhdfs(self, request: web.Request) -> web.Response:
        """Answer one operation; every error is a RemoteException."""
        try:
            target = parse_target(request.raw_path)
            if target.segments[len(_BASE) : -1] == (UPLOADS,):
                return await self._take(request, target)
            asked = self._asked(request, RequestTarget(target.segments[len(_BASE) :], target.query))
            name = asked.target.query.get("op", "").upper()
            operation = self._operations.get((request.method, name))
            if operation is None:
                raise _not_supported(f"{request.method} {name or '(no op)'}")  # noqa: TRY301 - answered below
            return await operation(asked)
        except TidelockError as error:
            failure: Exception = error
        except Exception as error:
            _log.error("write_failed", method=request.method, path=redact(request.path), exc_info=error)
            failure = TidelockError("internal error; the agent's log has the details")
        status, remote = hdfs.refusal(failure)
        refusal = web.Response(status=status, body=remote)
        if request.content.exception() is not None or not request.content.at_eof():
            refusal.force_close()  # the unread rest of the body would block the next request
        return refusal

    def _asked(self, request: web.Request, target: RequestTarget) -> _Asked:
        """Return the caller and the target of a request; no text of an error contains a part of the token."""
        if not target.segments:
            raise NoSuchPathError("folders of transactions are below /transactions/<token>")
        claims, tx = self._service.admit(target.segments[0])
        match target.segments[1:]:
            case (namespace, name, *inner):
                name = full_name(f"{namespace}.{name}")
                claims.require_table(name)
                table = self._service.table(tx, name)
                return _Asked(request, target, claims, tx, name, table, tuple(inner))
        return _Asked(request, target, claims, tx, None, None, ())

    async def _status(self, asked: _Asked) -> web.Response:
        return _body(hdfs.file_status(_entry(self._existing(asked), named=False)))

    async def _list(self, asked: _Asked) -> web.Response:
        if asked.table is None or (kind_of(asked.place) is PathKind.RESULT and not job_folder(asked.place)):
            return self._shown(asked)
        found = self._existing(asked)
        if found.length is not None:
            return _body(hdfs.file_statuses([_entry(found, named=False)]))
        entries = self._service.area(asked.tx, asked.table).entries(asked.place)
        return _body(hdfs.file_statuses([_entry(entry, named=True) for entry in entries]))

    def _shown(self, asked: _Asked) -> web.Response:
        """List a folder of the table's rows: one file, which cannot be opened.

        An engine that writes to a table by its name lists the folder first, and opens nothing. One that reads
        it fails: without the file it would read no rows, and say nothing.
        """
        if asked.table is None or Right.BY_NAME not in asked.claims.rights:
            raise _not_supported("a listing of the table's rows")
        file = self._service.one_file(asked.tx, asked.table)
        depth = len(asked.place)
        if file[:depth] != asked.place or depth == len(file):
            raise NoSuchPathError(f"{text_of(asked.place)} does not exist in the folder of {asked.name}")
        last = depth + 1 == len(file)
        entry = hdfs.file_entry(file[depth], _SHOWN_BYTES, 0) if last else hdfs.folder_entry(file[depth])
        return _body(hdfs.file_statuses([entry]))

    async def _blocks(self, asked: _Asked) -> web.Response:
        """Say where the listed file is: Spark asks for each file that it lists."""
        self._require_shown(asked)
        return _body(hdfs.block_locations(0, "", 0))

    async def _blocks_of_3_5(self, asked: _Asked) -> web.Response:
        self._require_shown(asked)
        return _body(hdfs.located_blocks(_SHOWN_BYTES))

    @staticmethod
    def _require_shown(asked: _Asked) -> None:
        if Right.BY_NAME not in asked.claims.rights or asked.place[-1:] != (ONE_FILE,):
            raise _not_supported("a read of the table's rows")

    def _existing(self, asked: _Asked) -> Entry:
        if asked.place[-1:] == (ONE_FILE,):
            raise _not_supported("a read of the table's rows")
        if asked.table is None:
            return Entry("", None)
        area = self._service.area(asked.tx, asked.table)
        entry = area.entry(asked.place)
        named = Right.BY_NAME in asked.claims.rights and replaces(asked.place)
        if entry is None and named and not area.at_work:
            # An INSERT deletes a partition that it names, if that exists; the delete finds its rows.
            return Entry(asked.place[-1], None)
        if entry is None:
            raise NoSuchPathError(f"{text_of(asked.place)} does not exist in the folder of {asked.name}")
        return entry

    async def _delegation_token(self, _asked: _Asked) -> web.Response:
        return _body(hdfs.delegation_token())

    async def _home(self, _asked: _Asked) -> web.Response:
        return _body(hdfs.path_answer("/"))

    async def _accept(self, asked: _Asked) -> web.Response:
        """Accept a change of permissions, owners or times without an effect: they mean nothing here."""
        self._existing(asked)
        return _body(b"")

    async def _accept_replication(self, asked: _Asked) -> web.Response:
        self._existing(asked)
        return _done(done=True)

    async def _make_folder(self, asked: _Asked) -> web.Response:
        table = asked.written(Right.APPEND)
        return _done(done=self._service.area(asked.tx, table).make_folder(asked.place))

    async def _create(self, asked: _Asked) -> web.Response:
        """Redirect the first request to the address that receives the bytes; the second request has them."""
        table, query = asked.written(Right.APPEND), asked.target.query
        overwrite = query.get("overwrite", "true").lower() == "true"
        marks = kind_of(asked.place) is PathKind.MARKER
        if (source := query.get("source")) is not None:
            file = LocalFile(source, *(number(query, name) or 0 for name in ("length", "mtime_ns", "inode")))
            linked = await self._service.uploads.link(asked.tx, table, asked.place, file, overwrite=overwrite)
            return _done(done=linked)
        if "data" not in query:
            if marks:
                self._service.area(asked.tx, table)  # refuses a table that cannot have a folder
            else:
                elsewhere = await self._service.location(asked.tx, table, asked.place, overwrite=overwrite)
                if elsewhere is not None:
                    return _redirect(elsewhere)
            path = "/".join(quote(segment, safe="") for segment in (*_BASE, *asked.target.segments))
            fields = urlencode({"op": "CREATE", "overwrite": str(overwrite).lower(), "data": "true"})
            location = f"http://{self._service.tokens.member.api}/{path}?{fields}"
            return _redirect(location)
        if marks:
            if await asked.request.content.readany():
                raise BadRequestError(f"{text_of(asked.place)} marks the end of a job and must be empty")
            await self._service.uploads.mark(
                asked.tx, table, asked.place, asked.waiting, confirmed=asked.confirmed
            )
        else:
            content = asked.request.content.iter_any()
            await self._service.uploads.upload(asked.tx, table, asked.place, content, overwrite=overwrite)
        return web.Response(status=HTTPStatus.CREATED)

    async def _take(self, request: web.Request, target: RequestTarget) -> web.Response:
        """Receive a file for a transaction of another home."""
        if request.method != "PUT" or target.query.get("op", "").upper() != "CREATE":
            raise _not_supported(f"{request.method} of an upload")
        await self._service.take(target.segments[-1], request.content.iter_any())
        return web.Response(status=HTTPStatus.CREATED)

    async def _rename(self, asked: _Asked) -> web.Response:
        table = asked.written(Right.APPEND)
        destination = tuple(part for part in asked.target.query.get("destination", "").split("/") if part)
        own = ("transactions", *asked.target.segments[:3])
        if destination[: len(own)] != own:
            raise BadRequestError("a file can only be moved within the folder of its table and transaction")
        target = destination[len(own) :]
        return _done(done=await self._service.uploads.rename(asked.tx, table, asked.place, target))

    async def _delete(self, asked: _Asked) -> web.Response:
        table = asked.written(Right.REPLACE if replaces(asked.place) else Right.APPEND)
        recursive = asked.target.query.get("recursive", "false").lower() == "true"
        done = await self._service.uploads.delete(
            asked.tx,
            table,
            asked.place,
            recursive=recursive,
            waiting=asked.waiting,
            confirmed=asked.confirmed,
        )
        return _done(done=done)


class _Asked(msgspec.Struct, frozen=True):
    """A request with a valid token; ``name`` and ``table`` are None above the folders of the tables."""

    request: web.Request
    target: RequestTarget
    claims: TokenClaims
    tx: Transaction
    name: TableName | None
    table: TableId | None
    place: StagingPath

    def waiting(self) -> bool:
        """Return whether the client still waits for the answer."""
        return is_waiting(self.request)

    @property
    def confirmed(self) -> bool:
        """Whether jobs count when they are sealed."""
        return Right.BY_NAME not in self.claims.rights

    def written(self, right: Right) -> TableId:
        """Return the table whose folder the request may change with this right."""
        if self.table is None or self.name is None:
            raise BadRequestError("files can be written only below /transactions/<token>/<namespace>/<table>")
        self.claims.require(right, self.name)
        return self.table


def _not_supported(what: str) -> BadRequestError:
    return BadRequestError(
        f"{what} is not supported: the folder of a transaction accepts writes only; read with tx.read(), or "
        "from a snapshot after the commit"
    )


def _entry(entry: Entry, *, named: bool) -> bytes:
    name = entry.name if named else ""
    return hdfs.folder_entry(name) if entry.length is None else hdfs.file_entry(name, entry.length, 0)


def _redirect(location: str) -> web.Response:
    return web.Response(status=HTTPStatus.TEMPORARY_REDIRECT, headers={"Location": location})


def _done(*, done: bool) -> web.Response:
    return _body(hdfs.done_answer(done=done))


def _body(data: bytes) -> web.Response:
    return web.Response(body=data)
