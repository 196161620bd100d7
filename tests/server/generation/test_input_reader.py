"""Bodies are read alike wherever they are read, and none holds up the event loop or another."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import psutil
import pytest

from quire.server.errors import RequestError
from quire.server.generation.input_parser import DirectResponse, InputKind, TokenizedRequest
from quire.server.generation.input_reader import (
    INLINE_BYTES,
    MEDIUM_BYTES,
    THREAD_BYTES,
    InputReader,
)
from quire.server.models.input_context import InputContext, InputLimits, TokenizerSource
from quire.server.text.tokenizer import TextTokenizer
from tests.server.scripted_engine import FACTS
from tests.server.served import BUNDLED, MODEL

LENGTHS = (INLINE_BYTES, THREAD_BYTES, MEDIUM_BYTES, MEDIUM_BYTES + 1)
"""The largest body of each size class, and one of the last."""
MAX_BODY = 2 * MEDIUM_BYTES
HELLO = {"role": "user", "content": "Hello there"}
BODIES: list[tuple[InputKind, dict[str, object]]] = [
    (InputKind.COMPLETION, {"prompt": ["the king", "my lord"], "echo": True, "stop": ["x"]}),
    (InputKind.COMPLETION, {"prompt": [[5, 6], [7]], "user": "me", "seed": 3}),
    (InputKind.CHAT, {"messages": [HELLO], "chat_template_kwargs": {"nobody": 1}}),
    (InputKind.RESPONSE, {"input": [HELLO], "instructions": "Be brief."}),
    (InputKind.MESSAGE, {"messages": [HELLO], "max_tokens": 9, "system": "Be brief."}),
    (InputKind.COUNT_TOKENS, {"messages": [HELLO], "system": "Be brief."}),
    (InputKind.EMBEDDING, {"input": ["the king", "my lord"], "dimensions": 4}),
    (InputKind.RERANK, {"query": "the king", "documents": ["my lord", {"text": "a crown"}]}),
    (InputKind.SCORE, {"text_1": "the king", "text_2": ["my lord", "a crown"]}),
    (InputKind.TOKENIZE, {"prompt": "sweet prince", "return_token_strs": True}),
    (InputKind.TOKENIZE, {"messages": [HELLO]}),
    (InputKind.DETOKENIZE, {"tokens": [300, 301]}),
]
PROMPTS = (
    *(InputKind.COMPLETION, InputKind.CHAT, InputKind.RESPONSE, InputKind.MESSAGE),
    *(InputKind.EMBEDDING, InputKind.RERANK, InputKind.SCORE),
)
WRONG: list[tuple[InputKind, dict[str, object]]] = [
    (InputKind.COMPLETION, {"prompt": "x", "promt": 1}),
    (InputKind.COMPLETION, {"prompt": [5, -1]}),
    (InputKind.CHAT, {"messages": [HELLO, {"role": "king", "content": ""}]}),
    (InputKind.MESSAGE, {"messages": [HELLO | {"role": "king"}], "max_tokens": 9}),
    (InputKind.DETOKENIZE, {"tokens": [FACTS.vocab_size]}),
]
Made = TypeVar("Made")


@pytest.fixture
def context(tokenizer: TextTokenizer) -> InputContext:
    return InputContext(
        InputLimits(FACTS, 1024, (MODEL,)), tokenizer, TokenizerSource(BUNDLED, None)
    )


@contextlib.asynccontextmanager
async def opened(*, max_waiting: int = 8 * MAX_BODY) -> AsyncIterator[InputReader]:
    reader = InputReader(max_body_bytes=MAX_BODY, max_waiting=max_waiting, clock=time.monotonic)
    try:
        yield reader
    finally:
        await reader.close()


def padded(fields: dict[str, object], length: int) -> bytes:
    return json.dumps(fields).encode().ljust(length)


async def read(
    reader: InputReader, kind: InputKind, body: bytes, context: InputContext, tenant: str = ""
) -> TokenizedRequest | DirectResponse:
    if kind in PROMPTS:
        return await reader.prompts(kind, body, context, tenant)
    return await reader.answer(kind, body, context, tenant)


def test_a_body_is_read_alike_wherever_it_is_read(context: InputContext) -> None:
    async def run() -> None:
        async with opened() as reader:
            for kind, fields in BODIES:
                first, *others = [
                    await read(reader, kind, padded(fields, length), context) for length in LENGTHS
                ]
                assert others == [first] * len(others)

    asyncio.run(run())


def test_what_is_wrong_is_said_alike_wherever_it_is_found(context: InputContext) -> None:
    async def said(reader: InputReader, kind: InputKind, body: bytes) -> tuple[object, ...]:
        with pytest.raises(RequestError) as caught:
            await read(reader, kind, body, context)
        error = caught.value
        return error.message, error.param, error.code, error.status

    async def run() -> None:
        async with opened() as reader:
            for kind, fields in WRONG:
                told = {await said(reader, kind, padded(fields, length)) for length in LENGTHS}
                assert len(told) == 1

    asyncio.run(run())


async def num_iterations(work: Awaitable[Made]) -> int:
    """How many iterations the event loop does meanwhile."""
    working, count = asyncio.ensure_future(work), 0
    while not working.done():
        await asyncio.sleep(0)
        count += 1
    await working
    return count


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_the_loop_goes_on_while_a_body_is_read(context: InputContext, length: int) -> None:
    async def run() -> int:
        text = "word " * ((length - 100) // 5)
        async with opened() as reader:
            body = padded({"prompt": text}, length)
            return await num_iterations(reader.answer(InputKind.TOKENIZE, body, context, ""))

    assert asyncio.run(run()) > 10  # work on the loop itself is done at its first turn


def workers() -> list[psutil.Process]:
    return [
        each
        for each in psutil.Process().children()
        if "anyio.to_process" in " ".join(each.cmdline())
    ]


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=10)[1]


def test_worker_processes_end_with_the_reader_and_one_that_died_is_replaced(
    context: InputContext,
) -> None:
    async def run() -> None:
        body = padded({"prompt": "x"}, MEDIUM_BYTES)
        async with opened() as reader:
            first = await reader.answer(InputKind.TOKENIZE, body, context, "")
            (worker,) = workers()
            worker.kill()
            assert gone([worker])
            assert await reader.answer(InputKind.TOKENIZE, body, context, "") == first
            others = workers()
        assert len(others) == 1
        assert gone(others)

    asyncio.run(run())


def test_a_full_size_class_refuses_and_says_when_to_come_again(context: InputContext) -> None:
    body = padded({"prompt": "word " * 100_000}, MEDIUM_BYTES)

    async def run() -> None:
        async with opened(max_waiting=MEDIUM_BYTES) as reader:
            running, waiting = (
                asyncio.create_task(reader.answer(InputKind.TOKENIZE, body, context, each))
                for each in "ab"
            )
            await asyncio.sleep(0)
            with pytest.raises(RequestError) as caught:
                await reader.answer(InputKind.TOKENIZE, body, context, "c")
            assert (caught.value.status, caught.value.code) == (503, "server_overloaded")
            assert caught.value.retry_after_s
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            third = asyncio.create_task(reader.answer(InputKind.TOKENIZE, body, context, "c"))
            assert await third == await running

    asyncio.run(run())


def test_a_short_body_does_not_wait_for_long_ones(context: InputContext) -> None:
    async def run(order: Callable[[str], None]) -> None:
        async with opened() as reader:

            async def answer(name: str, length: int) -> None:
                body = padded({"prompt": "word " * ((length - 100) // 5)}, length)
                await reader.answer(InputKind.TOKENIZE, body, context, "")
                order(name)

            long = [asyncio.create_task(answer("long", MEDIUM_BYTES)) for _ in range(4)]
            await asyncio.sleep(0)
            await answer("short", THREAD_BYTES)
            for each in long[1:]:
                each.cancel()
            await asyncio.gather(*long, return_exceptions=True)

    served: list[str] = []
    asyncio.run(run(served.append))
    assert served[0] == "short"
