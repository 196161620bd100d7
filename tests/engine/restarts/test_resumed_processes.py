"""A request that goes on in another engine process, through the messages of the channel."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import pytest

from quire.engine.channel import Channel
from quire.engine.messages import EngineOutput, Failed, FromEngine, Loading, Ready, Submit
from quire.engines.process.launch import launch
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Resumed, Sampling, Stopping
from quire.scheduler.step import Delta
from tests.engine.test_process import CONFIG, request

DECODER = msgspec.msgpack.Decoder[FromEngine](Loading | Ready | Failed | EngineOutput)


class EngineProcess:
    """An engine process that is ready, seen from its socket."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.outputs: list[EngineOutput] = []
        while not any(isinstance(message, Ready) for message in self._receive()):
            pass

    def _receive(self) -> list[FromEngine]:
        return [DECODER.decode(body) for body in self._channel.receive(wait=True)]

    def submit(self, new: NewRequest, resumed: Resumed | None = None) -> None:
        self._channel.send(Submit(new, resumed))

    def deltas_until(self, num_outputs: int) -> list[Delta]:
        """Read on until so many tokens have come, or the request's end."""
        deltas: list[Delta] = []
        while not deltas or deltas[-1].finish is None:
            if sum(len(delta.token_ids) for delta in deltas) >= num_outputs:
                break
            outputs = [each for each in self._receive() if isinstance(each, EngineOutput)]
            self.outputs += outputs
            deltas += [delta for output in outputs for delta in output.deltas]
        return deltas


@contextmanager
def engine_process() -> Iterator[EngineProcess]:
    launched = launch(CONFIG)
    with launched.socket:
        yield EngineProcess(Channel(launched.socket))
        launched.process.kill()
    launched.process.wait()


@pytest.mark.long  # tests/e2e/restarts/test_restarts.py has streams that go on in every run
def test_an_output_goes_on_in_another_process_where_its_client_heard_it_last() -> None:
    sampled = replace(
        request("a", max_tokens=120), sampling=Sampling(seed=5), stopping=Stopping(120)
    )
    with engine_process() as engine:
        engine.submit(sampled)
        whole = engine.deltas_until(1000)
    with engine_process() as engine:
        engine.submit(sampled)
        had = engine.deltas_until(20)
        events = [event for output in engine.outputs for _, event in output.events]
    assert had[-1].finish is None, "killed in the middle"
    token_ids = tuple(token for delta in had for token in delta.token_ids)
    with engine_process() as engine:
        engine.submit(sampled, Resumed(token_ids, timeline=tuple(events)))
        rest = engine.deltas_until(1000)
    text = [token for delta in had + rest for token in delta.token_ids]
    assert text == [token for delta in whole for token in delta.token_ids]
    finish = rest[-1].finish
    assert finish is not None and finish.reason is Reason.MAX_TOKENS
    times = [event.time_s for event in finish.timeline]
    assert finish.timeline[: len(events)] == tuple(events)
    assert times == sorted(times), "all processes of a machine share the clock"
    assert finish.queue_s + finish.prefill_s + finish.decode_s > times[-1] - times[0] - 1e-6
