"""The routes of tables, alone and inside a transaction; a part of the table of routes."""

from __future__ import annotations

from typing import Final

from tidelock.errors import (
    CheckViolationError,
    FencedError,
    PartDamagedError,
    SnapshotTooOldError,
    TableChangedError,
    TableExistsError,
    TooLargeError,
    UnknownTableError,
    UnknownTransactionError,
    UnsealedWriteError,
    UnsupportedTypeError,
)
from tidelock.replica_agent.api.namespaces import NamespaceRoutes
from tidelock.replica_agent.api.route import AnyToken, ApiRoute, Parameter
from tidelock.replica_agent.api.route_terms import ABOUT_TX, AT_CSN, COMMIT, CSN, TOKEN, TX, V1
from tidelock.replica_agent.api.tables import TableRoutes
from tidelock.replica_agent.config.states import AgentAction
from tidelock.wire import tables

#: Errors of a statement that defines a table.
DEFINING: Final = (
    *ABOUT_TX,
    *(FencedError, TableChangedError, UnknownTableError, UnsealedWriteError, TooLargeError),
)

TABLES: Final = (
    ApiRoute(
        method="POST", path=f"{V1}/tables", handler=TableRoutes.create, subject="tables",
        request=tables.CreateTableRequest, response=tables.CommittedTable, action=AgentAction.BEGIN,
        errors=(*COMMIT, TableExistsError, UnknownTableError, UnsupportedTypeError), status=201,
    ),
    ApiRoute(
        method="PATCH", path=f"{V1}/tables/{{table}}", handler=TableRoutes.alter, subject="tables",
        request=tables.AlterTableRequest, response=tables.CommittedTable, action=AgentAction.BEGIN,
        errors=(*COMMIT, TableExistsError, UnknownTableError),
    ),
    ApiRoute(
        method="DELETE", path=f"{V1}/tables/{{table}}", handler=TableRoutes.drop, subject="tables",
        response=tables.DroppedTable, action=AgentAction.BEGIN, errors=(*COMMIT, UnknownTableError),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tables", handler=TableRoutes.list, subject="tables",
        response=list[tables.TableInfo], query=(CSN,), errors=AT_CSN, action=AgentAction.READ,
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tables/{{table}}", handler=TableRoutes.show, subject="tables",
        response=tables.TableInfo, query=(CSN,), errors=(*AT_CSN, UnknownTableError),
        action=AgentAction.READ,
    ),
    ApiRoute(
        method="GET", path=f"{TX}/tables/{{table}}", handler=TableRoutes.show_inside, subject="tables",
        token=AnyToken.ANY, response=tables.TableInfo,
        errors=(UnknownTableError, UnknownTransactionError, *TOKEN),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/tables", handler=TableRoutes.create_inside, subject="statements",
        request=tables.CreateTableRequest, response=tables.DefinedTable, action=AgentAction.INSERT,
        errors=(*DEFINING, TableExistsError, UnsupportedTypeError), status=201,
    ),
    ApiRoute(
        method="PATCH", path=f"{TX}/tables/{{table}}", handler=TableRoutes.alter_inside,
        subject="statements", request=tables.AlterTableRequest, response=tables.DefinedTable,
        action=AgentAction.INSERT, errors=(*DEFINING, TableExistsError, CheckViolationError),
    ),
    ApiRoute(
        method="DELETE", path=f"{TX}/tables/{{table}}", handler=TableRoutes.drop_inside,
        subject="statements", response=tables.DefinedTable, action=AgentAction.INSERT, errors=DEFINING,
    ),
    ApiRoute(
        method="POST", path=f"{V1}/tables/{{table}}/undrop", handler=TableRoutes.undrop, subject="tables",
        request=tables.UndropRequest, optional=True, response=tables.CommittedTable,
        action=AgentAction.BEGIN,
        errors=(*COMMIT, TableExistsError, UnknownTableError, SnapshotTooOldError, PartDamagedError),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/tables/{{table}}/undrop", handler=TableRoutes.undrop_inside,
        subject="statements", request=tables.UndropRequest, optional=True, response=tables.DefinedTable,
        action=AgentAction.INSERT,
        errors=(*DEFINING, TableExistsError, SnapshotTooOldError, PartDamagedError),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/tables/{{table}}/clone", handler=TableRoutes.clone_inside,
        subject="statements", request=tables.CloneRequest, response=tables.DefinedTable, status=201,
        action=AgentAction.INSERT, errors=(*DEFINING, *AT_CSN, TableExistsError, PartDamagedError),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/parts", handler=TableRoutes.parts, subject="tables",
        response=list[tables.PartInfo], errors=(*AT_CSN, UnknownTableError), action=AgentAction.READ,
        query=(Parameter(name="table", kind="string", required=True, meaning="Name of the table."), CSN),
    ),
)  # fmt: skip

_CASCADE: Final = (Parameter(name="cascade", kind="integer", meaning="1: drop its tables, too."),)

NAMESPACES: Final = (
    ApiRoute(
        method="GET", path=f"{V1}/namespaces", handler=NamespaceRoutes.list_namespaces, subject="tables",
        response=list[tables.NamespaceInfo], query=(CSN,), errors=AT_CSN, action=AgentAction.READ,
    ),
    ApiRoute(
        method="POST", path=f"{V1}/namespaces", handler=NamespaceRoutes.create_namespace, subject="tables",
        request=tables.CreateNamespaceRequest, response=tables.DefinedNamespace, action=AgentAction.BEGIN,
        errors=(*COMMIT, TableExistsError), status=201,
    ),
    ApiRoute(
        method="DELETE", path=f"{V1}/namespaces/{{namespace}}", handler=NamespaceRoutes.drop_namespace,
        subject="tables", response=tables.DefinedNamespace, action=AgentAction.BEGIN, query=_CASCADE,
        errors=(*COMMIT, TableExistsError),
    ),
    ApiRoute(
        method="POST", path=f"{TX}/namespaces", handler=NamespaceRoutes.create_namespace_inside,
        subject="statements", request=tables.CreateNamespaceRequest, response=tables.DefinedNamespace,
        action=AgentAction.INSERT, errors=DEFINING, status=201,
    ),
    ApiRoute(
        method="DELETE", path=f"{TX}/namespaces/{{namespace}}", handler=NamespaceRoutes.drop_namespace_inside,
        subject="statements", response=tables.DefinedNamespace, action=AgentAction.INSERT,
        query=_CASCADE, errors=DEFINING,
    ),
)  # fmt: skip
