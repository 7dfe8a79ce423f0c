"""Wires the parts that receive files for transactions of this home and of others. Pure wiring."""

from __future__ import annotations

import secrets
import time

import msgspec

from tidelock.replica_agent.lifecycle.means import Means
from tidelock.replica_agent.lifecycle.replication_parts import ReplicationParts
from tidelock.replica_agent.lifecycle.transaction_parts import TransactionParts
from tidelock.replica_agent.uploads.eager_replication import EagerReplication
from tidelock.replica_agent.uploads.examiner import FileExaminer
from tidelock.replica_agent.uploads.grants import UploadGrants
from tidelock.replica_agent.uploads.peer_uploads import PeerUploads
from tidelock.replica_agent.uploads.receiving import UploadReceiver
from tidelock.replica_agent.uploads.redirect import UploadRedirector
from tidelock.replica_agent.uploads.targets import UploadTargets
from tidelock.replica_agent.uploads.token_issuer import TokenIssuer
from tidelock.replica_agent.uploads.tokens import key_of
from tidelock.replica_agent.uploads.uploads import Uploads


class UploadParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that receive files of jobs."""

    eager: EagerReplication
    uploads: Uploads
    redirector: UploadRedirector
    peer_uploads: PeerUploads


def make_uploads(means: Means, replication: ReplicationParts, transactions: TransactionParts) -> UploadParts:
    """Make these parts; they do not run yet."""
    local, settings, cluster = means.local, means.settings, means.session.cluster.cluster_id
    key = key_of(settings.secret, cluster, secrets.token_bytes(32))
    grants = UploadGrants(key, shared=bool(settings.secret), cluster=cluster, replica=means.replica)
    eager = EagerReplication(
        local.catalog,
        local.files,
        replication.pusher,
        replication.fetcher,
        patience_s=settings.commit_timeout_s,
    )
    receiver = UploadReceiver(settings.uploads_max)
    means.stack.callback(receiver.close)
    examiner = FileExaminer(settings=settings, data_dir=local.files.data_dir)
    means.stack.push_async_callback(examiner.close)
    uploads = Uploads(
        settings=settings,
        catalog=local.catalog,
        files=local.files,
        numbers=replication.numbers,
        waiters=local.waiters,
        metrics=means.metrics,
        transactions=transactions.registry,
        tables=local.tables,
        inserts=transactions.inserts,
        removals=transactions.removals,
        tokens=TokenIssuer(
            settings=settings,
            key=key,
            cluster=cluster,
            replica=means.replica,
            transactions=transactions.registry,
            member=local.member,
            monotonic=time.monotonic,
            wall_s=time.time,
        ),
        eager=eager,
        receiver=receiver,
        examiner=examiner,
        hint=replication.pusher.hint,
    )
    redirector = UploadRedirector(
        settings=settings,
        home=means.replica,
        numbers=replication.numbers,
        files=local.files,
        uploads=uploads,
        eager=eager,
        grants=grants,
        targets=UploadTargets(settings, replication.membership, replication.client, time.monotonic),
        monotonic=time.monotonic,
    )
    peer_uploads = PeerUploads(
        replica=means.replica,
        catalog=local.catalog,
        files=local.files,
        client=replication.client,
        grants=grants,
        peers=replication.membership.peers,
        retry_wait_max_s=settings.retry_wait_max_s,
        receiver=receiver,
        taken=means.metrics.uploads.labels("other").inc,
    )
    return UploadParts(eager=eager, uploads=uploads, redirector=redirector, peer_uploads=peer_uploads)
