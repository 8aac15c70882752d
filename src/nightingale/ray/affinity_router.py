"""The router that Ray Serve's proxies use: session and voice first, then the least loaded replica."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from nightingale.ray.affinity import ReplicaLoad, rank_replicas

UNKNOWN_CAPACITY = 2
"""Listeners of a replica that has not measured its capacity yet, as in the engine."""


class AffinityRouter(RequestRouter):
    """Ranks replicas by `rank_replicas`.

    Ray's cache of queue lengths is updated when a request was sent; of a burst, all requests would see the same
    lengths. So requests count from the moment a replica is chosen for them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._chosen: dict[str, ReplicaID] = {}
        """Request -> its replica, until it has ended."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return [candidate_replicas]
        # Ray waits between two attempts only if it is told to.
        pending_request.routing_context.should_backoff = True
        metadata, known = pending_request.metadata, {r.replica_id.unique_id: r for r in candidate_replicas}
        self._chosen.pop(metadata.internal_request_id, None)
        sent = Counter(self._chosen.values())
        loads = [self._load(replica, sent) for replica in candidate_replicas]
        ranked = [known[name] for name in rank_replicas(metadata.session_id or None, loads)]
        if ranked:
            self._chosen[metadata.internal_request_id] = ranked[0].replica_id
        return [[replica] for replica in ranked]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:  # noqa: ARG002
        self._chosen.pop(internal_request_id, None)

    def _load(self, replica: RunningReplica, sent: Counter[ReplicaID]) -> ReplicaLoad:
        # The cache also has what other proxies have sent; it may be behind what this one has.
        cached = self.replica_queue_len_cache.get(replica.replica_id) or 0
        capacity = replica.routing_stats.get("capacity") or UNKNOWN_CAPACITY
        listeners = max(cached, sent[replica.replica_id])
        return ReplicaLoad(id=replica.replica_id.unique_id, listeners=listeners, capacity=int(capacity))
