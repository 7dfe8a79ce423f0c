"""The table of routes: the application registers them from it, and docs/openapi.json is generated from it.

A route that is not in the table is not served, and every route in the table is documented.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import msgspec
from aiohttp import web

from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    CorruptError,
    DiskFullError,
    FencedError,
    LabelExistsError,
    NoSuchCsnError,
    PartDamagedError,
    RefusedError,
    SnapshotTooOldError,
    StandbyError,
    TokenFinishedError,
    TooLargeError,
    TransactionClosedError,
    UnknownTableError,
    UnknownTransactionError,
    UnsealedWriteError,
    UnsupportedInTransactionError,
)
from tidelock.replica_agent.api import members, openapi, tags
from tidelock.replica_agent.api.administration import AdministrationRoutes
from tidelock.replica_agent.api.changes import ChangeRoutes
from tidelock.replica_agent.api.channel import ChannelRoutes
from tidelock.replica_agent.api.history import HistoryRoutes
from tidelock.replica_agent.api.members import MembersRoutes
from tidelock.replica_agent.api.namespaces import NamespaceRoutes
from tidelock.replica_agent.api.peer import BYTES, PeerRoutes
from tidelock.replica_agent.api.reading import ReadingRoutes
from tidelock.replica_agent.api.route import ApiRoute, Content, Parameter
from tidelock.replica_agent.api.route_terms import (
    ABOUT_TX,
    ADDING,
    AT_CSN,
    COMMIT,
    CSN,
    LANDING,
    NO_TYPE,
    PEER,
    REMOVAL,
    ROWS,
    TOKEN,
    TX,
    V1,
    WAITS,
    WRITE,
)
from tidelock.replica_agent.api.statements import StatementRoutes
from tidelock.replica_agent.api.status import StatusRoutes
from tidelock.replica_agent.api.table_routes import NAMESPACES, TABLES
from tidelock.replica_agent.api.tables import TableRoutes
from tidelock.replica_agent.api.tags import TagRoutes
from tidelock.replica_agent.api.transactions import TransactionRoutes
from tidelock.replica_agent.api.uploads import OPEN_ROUTE, WriteRoutes
from tidelock.replica_agent.config.states import AgentAction
from tidelock.replica_agent.uploads.tokens import Right
from tidelock.wire import (
    audit,
    changes,
    channel,
    cluster,
    history,
    log,
    peers,
    reads,
    statements,
    transactions,
    writes,
)


class DescriptionRoutes:
    """The handler of the OpenAPI document."""

    async def openapi(self, _request: web.Request) -> web.Response:
        """Describe this API as an OpenAPI document."""
        return web.Response(body=document(), content_type="application/json")


_TRANSACTIONS: Final = (
    ApiRoute(
        method="POST", path=f"{V1}/transactions", handler=TransactionRoutes.begin, subject="transactions",
        request=transactions.BeginRequest, optional=True, response=transactions.Begun, status=201,
        errors=(LabelExistsError, NoSuchCsnError, StandbyError, TooLargeError, TransactionClosedError),
        action=AgentAction.BEGIN,
    ),
    ApiRoute(
        method="GET", path=f"{V1}/transactions", handler=TransactionRoutes.list, subject="transactions",
        response=list[transactions.TransactionInfo],
    ),
    ApiRoute(
        method="GET", path=TX, handler=TransactionRoutes.show, subject="transactions",
        response=transactions.TransactionInfo, errors=(UnknownTransactionError,),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/heartbeat", handler=TransactionRoutes.heartbeat, subject="transactions",
        token=Right.HEARTBEAT, response=transactions.LeaseAnswer, errors=(UnknownTransactionError, *TOKEN),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/rows/{{table}}", handler=TransactionRoutes.insert, subject="statements",
        token=Right.APPEND, request=ROWS, response=statements.InsertResult, action=AgentAction.INSERT,
        errors=(*ADDING, *TOKEN),
        query=(
            Parameter(name="partition", kind="string", meaning="JSON object: the partition of all rows."),
        ),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/commit", handler=TransactionRoutes.commit, subject="transactions",
        token=Right.COMMIT, request=transactions.CommitRequest, optional=True,
        response=transactions.CommitAnswer, errors=(*COMMIT, *TOKEN), action=AgentAction.COMMIT,
    ),
    ApiRoute(
        method="POST", path=f"{TX}/rollback", handler=TransactionRoutes.rollback, subject="transactions",
        token=Right.COMMIT, response=transactions.EndAnswer, errors=(*ABOUT_TX, *TOKEN),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/kill", handler=TransactionRoutes.kill, subject="transactions",
        response=transactions.EndAnswer, errors=ABOUT_TX,
    ),
    ApiRoute(
        method="POST", path=f"{V1}/tids", handler=TransactionRoutes.reserve, subject="transactions",
        request=writes.TidsRequest, optional=True, response=writes.ReservedTids, status=201,
        action=AgentAction.BEGIN,
    ),
    ApiRoute(
        method="POST", path=f"{V1}/commits", handler=TransactionRoutes.write, subject="transactions",
        request=WRITE, response=transactions.CommitAnswer, action=AgentAction.BEGIN,
        errors=tuple(dict.fromkeys((*ADDING, *COMMIT, NoSuchCsnError, StandbyError))),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/landings/{{table}}", handler=TransactionRoutes.land,
        subject="transactions", request=ROWS, response=writes.LandAnswer, action=AgentAction.BEGIN,
        errors=LANDING,
        query=(
            Parameter(name="min_csn", kind="integer", meaning="The table was created up to this CSN."),
            Parameter(name="timeout_s", kind="number", meaning="How long that may take, in seconds."),
        ),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/outcomes/{{tid}}", handler=TransactionRoutes.outcome,
        subject="transactions", response=transactions.OutcomeAnswer, errors=(CommitUnknownError,),
        query=(
            Parameter(
                name="wait", kind="string", offered=WAITS,
                meaning="A committed one is answered when it is applied there; `home`: on this replica.",
            ),
            Parameter(name="timeout_s", kind="number", meaning="How long that is waited for, in seconds."),
        ),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/labels/{{label}}", handler=TransactionRoutes.label,
        subject="transactions", response=transactions.LabelAnswer, errors=(TooLargeError,), rest=True,
    ),
)  # fmt: skip

_REMOVALS: Final = (
    ApiRoute(
        method="POST", path=f"{TX}/drop_partition/{{table}}", handler=StatementRoutes.drop_partition,
        subject="statements", request=statements.PartitionRequest, response=statements.RemoveResult,
        errors=REMOVAL, action=AgentAction.INSERT,
    ),
    ApiRoute(
        method="POST", path=f"{TX}/truncate/{{table}}", handler=StatementRoutes.truncate,
        subject="statements", response=statements.RemoveResult, errors=REMOVAL, action=AgentAction.INSERT,
    ),
    ApiRoute(
        method="POST", path=f"{TX}/move_partition/{{table}}", handler=StatementRoutes.move_partition,
        subject="statements", request=statements.MoveRequest, response=statements.RemoveResult,
        errors=ADDING, action=AgentAction.INSERT,
    ),
    ApiRoute(
        method="POST", path=f"{TX}/restore/{{table}}", handler=StatementRoutes.restore, subject="statements",
        request=statements.RestoreRequest, response=statements.RestoreResult, errors=(*ADDING, *AT_CSN),
        action=AgentAction.INSERT,
    ),
)  # fmt: skip

_MUTATIONS: Final = (
    ApiRoute(
        method="POST", path=f"{TX}/delete/{{table}}", handler=StatementRoutes.delete, subject="statements",
        request=statements.DeleteRequest, response=statements.ChangeResult, errors=ADDING,
        action=AgentAction.INSERT,
    ),
    ApiRoute(
        method="POST", path=f"{TX}/update/{{table}}", handler=StatementRoutes.update, subject="statements",
        request=statements.UpdateRequest, response=statements.ChangeResult, errors=ADDING,
        action=AgentAction.INSERT,
    ),
    ApiRoute(
        method="POST", path=f"{TX}/upsert/{{table}}", handler=StatementRoutes.upsert, subject="statements",
        request=ROWS, response=statements.ChangeResult, errors=ADDING, action=AgentAction.INSERT,
        query=(
            Parameter(name="on", kind="string", required=True, meaning="Columns of the key, commas between."),
        ),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/merge/{{table}}", handler=StatementRoutes.merge, subject="statements",
        request=ROWS, response=statements.ChangeResult, errors=ADDING, action=AgentAction.INSERT,
        query=(Parameter(name="spec", kind=statements.MergeSpec, required=True, meaning="The merge."),),
    ),
)  # fmt: skip

_WRITES: Final = (
    ApiRoute(
        method="POST", path=f"{TX}/token", handler=WriteRoutes.token, subject="files",
        request=transactions.TokenRequest, optional=True, response=transactions.TokenAnswer, status=201,
        errors=(*ABOUT_TX, TokenFinishedError),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/seal/{{table}}", handler=WriteRoutes.seal, subject="files",
        request=transactions.SealRequest, optional=True, response=statements.InsertResult,
        errors=(*ADDING, UnsealedWriteError, TokenFinishedError), action=AgentAction.INSERT,
    ),
    ApiRoute(
        method="POST", path=f"{TX}/replace/{{table}}", handler=WriteRoutes.replace, subject="files",
        request=statements.ReplaceRequest, response=statements.Replacement,
        errors=(*REMOVAL, StandbyError, SnapshotTooOldError, UnsupportedInTransactionError),
        action=AgentAction.INSERT,
    ),
    ApiRoute(
        method="POST", path=f"{TX}/replaced/{{table}}", handler=WriteRoutes.replaced, subject="files",
        request=statements.RowChanges, response=statements.ChangeResult,
        errors=(*ADDING, CorruptError, UnsealedWriteError), action=AgentAction.INSERT,
    ),
    ApiRoute(
        method="POST", path=f"{TX}/confirm/{{table}}", handler=WriteRoutes.confirm, subject="files",
        response=transactions.Confirmed, errors=(*ABOUT_TX, UnknownTableError),
    ),
    ApiRoute(
        method="*", path="/webhdfs/v1/transactions/{path}", handler=WriteRoutes.webhdfs, subject="files",
        methods=("GET", "PUT", "DELETE"), response=NO_TYPE, rest=True, name=OPEN_ROUTE,
        action=AgentAction.INSERT,
        query=(Parameter(name="op", kind="string", required=True, meaning="The operation, e.g. CREATE."),),
    ),
)  # fmt: skip

_READS: Final = (
    ApiRoute(
        method="POST", path=f"{V1}/snapshots", handler=ReadingRoutes.open, subject="reads",
        request=reads.SnapshotRequest, optional=True, response=reads.SnapshotPin, status=201,
        errors=AT_CSN, action=AgentAction.LATEST,
    ),
    ApiRoute(
        method="GET", path=f"{V1}/snapshots", handler=ReadingRoutes.list, subject="reads",
        response=list[reads.SnapshotInfo],
    ),
    ApiRoute(
        method="POST", path=f"{V1}/snapshots/{{id}}/renew", handler=ReadingRoutes.renew, subject="reads",
        response=reads.SnapshotPin, errors=(SnapshotTooOldError, UnknownTransactionError),
    ),
    ApiRoute(
        method="DELETE", path=f"{V1}/snapshots/{{id}}", handler=ReadingRoutes.close, subject="reads",
        response=reads.SnapshotClosed, errors=(SnapshotTooOldError, UnknownTransactionError),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/query", handler=ReadingRoutes.query, subject="reads",
        request=reads.QueryRequest, response=ROWS, action=AgentAction.READ,
        errors=(*ADDING, *AT_CSN, CorruptError, UnsupportedInTransactionError),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/query", handler=ReadingRoutes.query_inside, subject="reads",
        token=Right.READ, request=reads.QueryRequest, response=ROWS,
        errors=(*ADDING, *TOKEN, CorruptError, UnsupportedInTransactionError),
    ),
)  # fmt: skip

_CHANGES: Final = (
    ApiRoute(
        method="GET", path=f"{V1}/tables/{{table}}/changes", handler=ChangeRoutes.sets, subject="changes",
        response=changes.ChangePageAnswer, errors=(*AT_CSN, UnknownTableError), action=AgentAction.READ,
        query=(
            Parameter(name="from", kind="integer", required=True, meaning="Changes begin after this CSN."),
            Parameter(name="to", kind="integer", meaning="The last CSN; default: what is applied here."),
            Parameter(name="files_max", kind="integer", meaning="Most parts of an answer."),
            Parameter(name="bytes_max", kind="integer", meaning="Most bytes of these parts."),
            Parameter(
                name="wait_s", kind="number",
                meaning="Without `to`: how long to wait for something to tell, in seconds.",
            ),
        ),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/tables/{{table}}/changes/rows", handler=ChangeRoutes.rows,
        subject="changes", request=changes.ChangedRowsRequest, response=ROWS, action=AgentAction.READ,
        errors=(*AT_CSN, CorruptError, PartDamagedError, TooLargeError, UnknownTableError),
    ),
)  # fmt: skip

_FLAGS: Final = ("0", "1")

_HISTORY: Final = (
    ApiRoute(
        method="GET", path=f"{V1}/csns", handler=HistoryRoutes.csn_at, subject="history",
        response=history.CsnTime, errors=AT_CSN, action=AgentAction.LATEST,
        query=(
            Parameter(name="at_ms", kind="integer", required=True, meaning="A time of the past (Unix, ms)."),
        ),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/csns/{{csn}}", handler=HistoryRoutes.time_of, subject="history",
        response=history.CsnTime, errors=AT_CSN, action=AgentAction.READ,
    ),
    ApiRoute(
        method="GET", path=f"{V1}/csns/{{csn}}/replicas", handler=HistoryRoutes.in_sync_replicas,
        subject="history", response=history.InSyncReplicas, errors=(NoSuchCsnError,), action=AgentAction.READ,
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tables/{{table}}/last_change", handler=HistoryRoutes.last_change,
        subject="history", response=history.LastChange, action=AgentAction.READ,
        errors=(NoSuchCsnError, StandbyError, UnknownTableError),
        query=(
            Parameter(
                name="min_csn", kind="integer",
                meaning="Changes up to this CSN are included; default: those that are applied here.",
            ),
        ),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tables/{{table}}/statistics", handler=HistoryRoutes.statistics,
        subject="history", response=history.TableStatistics, action=AgentAction.READ,
        errors=(*AT_CSN, CorruptError, PartDamagedError, TooLargeError, UnknownTableError),
        query=(
            CSN,
            Parameter(
                name="distinct", kind="string", offered=_FLAGS,
                meaning="1: estimate the numbers of distinct values, which reads all rows.",
            ),
        ),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/explain/parts/{{part}}", handler=HistoryRoutes.explain_part,
        subject="history", response=history.PartExplanation, action=AgentAction.READ, errors=AT_CSN,
        query=(CSN,),
    ),
)  # fmt: skip

_STATUS: Final = (
    ApiRoute(
        method="GET", path=f"{V1}/status", handler=StatusRoutes.status, subject="cluster",
        response=cluster.StatusAnswer,
    ),
    ApiRoute(
        method="GET", path=f"{V1}/log", handler=StatusRoutes.log, subject="cluster",
        response=list[log.LogEntry], errors=(SnapshotTooOldError, CorruptError),
        query=(
            Parameter(name="from_csn", kind="integer", meaning="The first CSN; default: the first kept."),
            Parameter(name="limit", kind="integer", meaning="Most records; bound: `log_answer_records_max`."),
        ),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/explain/{{tid}}", handler=StatusRoutes.explain, subject="cluster",
        response=cluster.Explanation,
    ),
    ApiRoute(
        method="GET", path="/metrics", handler=StatusRoutes.metrics, subject="cluster",
        response=Content("text/plain", "The metrics, in Prometheus' text format."),
    ),
    ApiRoute(
        method="GET", path="/healthz", handler=StatusRoutes.health, subject="cluster",
        response=cluster.Health, other={503: cluster.Health},
    ),
    ApiRoute(
        method="GET", path="/readyz", handler=StatusRoutes.ready, subject="cluster",
        response=cluster.Health, other={503: cluster.Health},
    ),
)  # fmt: skip

_AUDIT: Final = (
    ApiRoute(
        method="GET", path=f"{V1}/audit", handler=AdministrationRoutes.audit, subject="audit",
        response=audit.AuditAnswer, errors=(StandbyError,), action=AgentAction.LATEST,
        query=(Parameter(name="deep", kind="string", offered=_FLAGS, meaning="1: read all bytes too."),),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/audit/digests", handler=AdministrationRoutes.digests, subject="audit",
        response=audit.Digests, errors=AT_CSN, action=AgentAction.READ,
        query=(
            Parameter(name="csn", kind="integer", required=True, meaning="The CSN."),
            Parameter(name="above", kind="integer", meaning="Outcomes above this CSN; default: all kept."),
            Parameter(name="tables", kind="string", offered=_FLAGS, meaning="0: leave the parts out."),
        ),
    ),
)  # fmt: skip

_ADMIN: Final = (
    ApiRoute(
        method="POST", path=f"{V1}/admin/optimize", handler=AdministrationRoutes.optimize, subject="admin",
        request=cluster.OptimizeRequest, response=cluster.OptimizeAnswer, action=AgentAction.BEGIN,
        errors=(NoSuchCsnError, StandbyError, UnknownTableError),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/admin/horizon", handler=AdministrationRoutes.horizon, subject="admin",
        request=cluster.HorizonRequest, optional=True, response=cluster.HorizonAnswer,
        errors=(NoSuchCsnError,), action=AgentAction.COLLECT,
    ),
    ApiRoute(
        method="POST", path=f"{V1}/admin/resolve-lost", handler=AdministrationRoutes.resolve_lost,
        subject="admin", request=cluster.LostPartRequest, response=cluster.LostPart,
        errors=(BadRequestError, CommitUnknownError, RefusedError),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/admin/switches", handler=AdministrationRoutes.switch, subject="admin",
        request=cluster.SwitchRequest, response=cluster.SwitchesAnswer,
    ),
)  # fmt: skip

_UPLOAD: Final = (*ABOUT_TX, FencedError, TokenFinishedError, TooLargeError)
_PEERS: Final = (
    ApiRoute(
        method="POST", path=f"{PEER}/stage", handler=PeerRoutes.stage, subject="peers",
        request=Content("application/vnd.tidelock.stage", "A push: see docs/protocol.md#stage."),
        response=peers.Held, errors=(CorruptError, DiskFullError, TooLargeError), action=AgentAction.ACK,
    ),
    ApiRoute(
        method="POST", path=f"{PEER}/forget", handler=PeerRoutes.forget, subject="peers",
        request=peers.ForgetRequest, optional=True, response=peers.Nothing,
    ),
    ApiRoute(
        method="POST", path=f"{PEER}/hint", handler=PeerRoutes.hint, subject="peers",
        request=peers.HintRequest, response=peers.Nothing,
    ),
    ApiRoute(
        method="POST", path=f"{PEER}/uploads", handler=PeerRoutes.begin_upload, subject="peers",
        request=peers.UploadRequest, response=peers.UploadBegun, errors=(*_UPLOAD, *TOKEN),
        action=AgentAction.INSERT,
    ),
    ApiRoute(
        method="POST", path=f"{PEER}/uploads/{{part}}", handler=PeerRoutes.end_upload, subject="peers",
        request=peers.UploadedRequest, response=peers.Nothing, errors=_UPLOAD, action=AgentAction.INSERT,
    ),
    ApiRoute(
        method="POST", path=f"{PEER}/uploads/{{part}}/failed", handler=PeerRoutes.fail_upload,
        subject="peers", request=peers.FailedUploadRequest, response=peers.Nothing, errors=_UPLOAD,
    ),
    ApiRoute(
        method="GET", path=f"{PEER}/outcome/{{tid}}", handler=PeerRoutes.outcome, subject="peers",
        response=peers.PeerOutcome,
    ),
    ApiRoute(
        method="POST", path=f"{PEER}/clones/{{name}}", handler=PeerRoutes.clone, subject="peers",
        response=peers.CloneManifest, errors=(StandbyError,), action=AgentAction.READ,
    ),
    ApiRoute(
        method="GET", path=f"{PEER}/clones/{{name}}", handler=PeerRoutes.read_clone, subject="peers",
        response=Content(BYTES, "The next bytes of the catalog."),
        query=(Parameter(name="from", kind="integer", meaning="The first byte; default: 0."),),
    ),
    ApiRoute(
        method="DELETE", path=f"{PEER}/clones/{{name}}", handler=PeerRoutes.end_clone, subject="peers",
        response=peers.Nothing,
    ),
    ApiRoute(
        method="GET", path=f"{PEER}/parts/{{part}}", handler=PeerRoutes.part, subject="peers",
        response=peers.PartWord,
    ),
    ApiRoute(
        method="GET", path=f"{PEER}/digests/{{csn}}", handler=PeerRoutes.digest, subject="peers",
        response=peers.StateDigest, errors=(SnapshotTooOldError,), action=AgentAction.READ,
    ),
    ApiRoute(
        method="GET", path=f"{PEER}/status", handler=PeerRoutes.status, subject="peers",
        response=peers.PeerStatus,
    ),
)  # fmt: skip

_CHANNELS: Final = (
    ApiRoute(
        method="GET", path=f"{V1}{channel.PATH}", handler=ChannelRoutes.open, subject="transactions",
        response=None, status=101,
    ),
    ApiRoute(
        method="GET", path=f"{PEER}{channel.PATH}", handler=ChannelRoutes.open_to_peer, subject="peers",
        response=None, status=101,
    ),
)  # fmt: skip

_DESCRIPTION: Final = (ApiRoute(
    method="GET", path=f"{V1}/openapi.json", handler=DescriptionRoutes.openapi, subject="cluster",
    response=Content("application/json", "This document."),
),)  # fmt: skip

#: All routes of the API address, by the class of their handlers.
ROUTES: Final[Mapping[type, tuple[ApiRoute, ...]]] = {
    TransactionRoutes: _TRANSACTIONS,
    StatementRoutes: (*_REMOVALS, *_MUTATIONS),
    WriteRoutes: _WRITES,
    TableRoutes: TABLES,
    NamespaceRoutes: NAMESPACES,
    ReadingRoutes: _READS,
    ChangeRoutes: _CHANGES,
    HistoryRoutes: _HISTORY,
    StatusRoutes: _STATUS,
    AdministrationRoutes: (*_AUDIT, *_ADMIN),
    MembersRoutes: members.ROUTES,
    TagRoutes: tags.ROUTES,
    PeerRoutes: _PEERS,
    ChannelRoutes: _CHANNELS,
    DescriptionRoutes: _DESCRIPTION,
}

#: The routes that tokens open, by method and path; see :class:`bearer.Bearers`.
OPENED: Final[Mapping[tuple[str, str], Right | None]] = {
    (route.method, route.path): route.token if isinstance(route.token, Right) else None
    for group in ROUTES.values()
    for route in group
    if route.token is not None
}


def definitions(group: object) -> list[web.RouteDef]:
    """Return the definitions for aiohttp of an instance of one of the classes of :data:`ROUTES`."""
    return [route.definition(group) for route in ROUTES[type(group)]]


@cache
def document() -> bytes:
    """Return the OpenAPI document of the table, as the agent serves it."""
    return msgspec.json.encode(openapi.document([route for group in ROUTES.values() for route in group]))
