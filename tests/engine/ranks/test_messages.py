"""Messages between ranks say to the other end what they say to this one."""

import msgspec

from quire.engine.ranks.messages import CaptureGraphs, ToFollower
from quire.models.graphs.buffers import DecodeLimits
from quire.models.graphs.record import GraphPlan
from quire.models.graphs.sizes import GraphKinds


def test_a_plan_of_graphs_arrives_as_it_was_sent() -> None:
    plan = GraphPlan(GraphKinds(decode=True, pieces=False), DecodeLimits(256, 4096, 256, 2), 2048)
    sent = msgspec.msgpack.encode(CaptureGraphs(plan))
    assert msgspec.msgpack.decode(sent, type=ToFollower) == CaptureGraphs(plan)
