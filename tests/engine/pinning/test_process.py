"""Pins through the engine's own process: a request pins its prompt, a message lets it go."""

from dataclasses import replace

from quire.engine.messages import EngineOutput
from quire.engine.orders import Unpin
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Stopping
from quire.scheduler.step import Stats
from tests.engine.test_process import CONFIG, GREEDY, collect, ready, request, submitted, supervisor

SHORT = replace(CONFIG, scheduling=replace(CONFIG.scheduling, max_model_len=64))


async def test_a_prompt_stays_pinned_until_a_message_lets_it_go() -> None:
    outputs: list[EngineOutput] = []
    client = supervisor(SHORT, outputs=outputs)
    client.order(Unpin("a"))  # an engine that has not started has no pins
    await client.start()
    await ready(client)

    async def stats_after(name: str) -> Stats:
        await collect(await submitted(client, request(name)))
        return outputs[-1].stats

    try:
        prompt = tuple(range(1, 49))
        new = NewRequest("a", prompt, GREEDY, Stopping(0), pins_prompt=True)
        token_ids, finish = await collect(await submitted(client, new))
        assert token_ids == [] and finish is not None
        reasons = [event.reason for event in finish.timeline]
        assert reasons[-2:] == [Reason.PINNED, Reason.PROMPT_COMPUTED]
        assert (await stats_after("b")).num_blocks_pinned == 3
        client.order(Unpin("a"))
        assert (await stats_after("c")).num_blocks_pinned == 0
    finally:
        await client.close()
