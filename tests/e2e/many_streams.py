"""Many streams at once, and the same ones one after another."""

import asyncio
import json

import httpx

from tests.e2e.server_process import ServerProcess

NUM_STREAMS = 64
OPENINGS = ("The king", "My lord,", "O", "What news from the north? I heard")


def body_of(index: int) -> dict[str, object]:
    opening = OPENINGS[index % len(OPENINGS)]
    return {
        "prompt": f"{opening} {'and so ' * (index % 7)}{index}",
        "max_tokens": 4 + index % 9,
        "temperature": (index % 3) / 2,
        "seed": index,
        "ignore_eos": True,
        "stream": True,
    }


async def stream_text(client: httpx.AsyncClient, body: dict[str, object]) -> str:
    text = ""
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        done = False
        async for line in reply.aiter_lines():
            done = done or line == "data: [DONE]"
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
        assert done
    return text


def together_and_alone(server: ServerProcess) -> tuple[list[str], list[str]]:
    """The texts of all streams at once, and of one after another."""

    async def run() -> tuple[list[str], list[str]]:
        limits = httpx.Limits(max_connections=NUM_STREAMS)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            bodies = [body_of(index) for index in range(NUM_STREAMS)]
            together = await asyncio.gather(*(stream_text(client, body) for body in bodies))
            alone = [await stream_text(client, body) for body in bodies]
            return list(together), alone

    return asyncio.run(run())
