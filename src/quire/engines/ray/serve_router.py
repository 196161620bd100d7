"""Chooses replicas by Ray Serve's own routers, but for calls that name their replica."""

import random

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import (
    PrefixCacheAffinityRouter,
)
from ray.serve._private.replica_result import ReplicaResult
from ray.serve.request_router import (
    LocalityMixin,
    MultiplexMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from quire.engines.ray.messages import Call


def call_of(request: PendingRequest | None) -> Call:
    """Return the call of a request; an empty one where the request is not known."""
    call = request.args[0] if request is not None and request.args else None
    return call if isinstance(call, Call) else Call(b"")


def by_load(call: Call, replicas: list[RunningReplica]) -> list[list[RunningReplica]]:
    """Return the replica that a call names, if it does and it is there, else two that are drawn."""
    named = [each for each in replicas if each.replica_id.unique_id == call.replica]
    return [named or random.sample(replicas, min(len(replicas), 2))]


class LoadRouter(LocalityMixin, MultiplexMixin, RequestRouter):
    """Chooses the replica with fewer requests of two that are drawn: Serve's power of two choices,
    but for its order of arrival, in which a replica that is named for one call could get another.
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas to choose from, by their numbers of requests."""
        return by_load(call_of(pending_request), candidate_replicas)


class PrefixRouter(PrefixCacheAffinityRouter):
    """Chooses the replica that has seen most of the prompt, as Ray's router for language models
    does."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas to choose from, by their numbers of requests."""
        call = call_of(pending_request)
        if call.replica is not None or not call.prompt:
            return by_load(call, candidate_replicas)
        chosen: list[list[RunningReplica]] = await super().choose_replicas(
            candidate_replicas, pending_request
        )
        return chosen

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        """Remember what the replica has seen, unless the call was no request's."""
        if call_of(pending_request).prompt:
            super().on_request_routed(pending_request, replica_id, result)
