"""Bodies are read alike wherever they are read, and none holds up the event loop or another."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import psutil
import pytest

from quire.server.apis.anthropic.inputs import count_tokens, parse_message
from quire.server.apis.embeddings.parser import parse_embedding
from quire.server.apis.openai.inputs import detokenize, parse_chat, parse_completion, tokenize
from quire.server.apis.responses.inputs import parse_response
from quire.server.apis.scoring.parser import parse_rerank, parse_score
from quire.server.errors import RequestError
from quire.server.generation.input_reader import (
    INLINE_BYTES,
    MEDIUM_BYTES,
    THREAD_BYTES,
    InputReader,
)
from quire.server.generation.parsed_input import DirectResponse, InputParser, TokenizedRequest
from quire.server.models.input_context import InputContext, InputLimits, TokenizerSource
from quire.server.text.tokenizer import TextTokenizer
from tests.server.scripted_engine import FACTS
from tests.server.served import BUNDLED, MODEL

LENGTHS = (INLINE_BYTES, THREAD_BYTES, MEDIUM_BYTES, MEDIUM_BYTES + 1)
"""The largest body of each size class, and one of the last."""
MAX_BODY = 2 * MEDIUM_BYTES
HELLO = {"role": "user", "content": "Hello there"}
BODIES: list[tuple[InputParser, dict[str, object]]] = [
    (parse_completion, {"prompt": ["the king", "my lord"], "echo": True, "stop": ["x"]}),
    (parse_completion, {"prompt": [[5, 6], [7]], "user": "me", "seed": 3}),
    (parse_chat, {"messages": [HELLO], "chat_template_kwargs": {"nobody": 1}}),
    (parse_response, {"input": [HELLO], "instructions": "Be brief."}),
    (parse_message, {"messages": [HELLO], "max_tokens": 9, "system": "Be brief."}),
    (count_tokens, {"messages": [HELLO], "system": "Be brief."}),
    (parse_embedding, {"input": ["the king", "my lord"], "dimensions": 4}),
    (parse_rerank, {"query": "the king", "documents": ["my lord", {"text": "a crown"}]}),
    (parse_score, {"text_1": "the king", "text_2": ["my lord", "a crown"]}),
    (tokenize, {"prompt": "sweet prince", "return_token_strs": True}),
    (tokenize, {"messages": [HELLO]}),
    (detokenize, {"tokens": [300, 301]}),
]
PROMPTS = (
    *(parse_completion, parse_chat, parse_response, parse_message),
    *(parse_embedding, parse_rerank, parse_score),
)
WRONG: list[tuple[InputParser, dict[str, object]]] = [
    (parse_completion, {"prompt": "x", "promt": 1}),
    (parse_completion, {"prompt": [5, -1]}),
    (parse_chat, {"messages": [HELLO, {"role": "king", "content": ""}]}),
    (parse_message, {"messages": [HELLO | {"role": "king"}], "max_tokens": 9}),
    (detokenize, {"tokens": [FACTS.vocab_size]}),
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
    reader: InputReader, parse: InputParser, body: bytes, context: InputContext, tenant: str = ""
) -> TokenizedRequest | DirectResponse:
    if parse in PROMPTS:
        return await reader.prompts(parse, body, context, tenant)
    return await reader.answer(parse, body, context, tenant)


def test_a_body_is_read_alike_wherever_it_is_read(context: InputContext) -> None:
    async def run() -> None:
        async with opened() as reader:
            for parse, fields in BODIES:
                first, *others = [
                    await read(reader, parse, padded(fields, length), context) for length in LENGTHS
                ]
                assert others == [first] * len(others)

    asyncio.run(run())


def test_what_is_wrong_is_said_alike_wherever_it_is_found(context: InputContext) -> None:
    async def said(reader: InputReader, parse: InputParser, body: bytes) -> tuple[object, ...]:
        with pytest.raises(RequestError) as caught:
            await read(reader, parse, body, context)
        error = caught.value
        return error.message, error.param, error.code, error.status

    async def run() -> None:
        async with opened() as reader:
            for parse, fields in WRONG:
                told = {await said(reader, parse, padded(fields, length)) for length in LENGTHS}
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
        text = "word " * (length // 50)  # the rest is blanks, which take no time
        async with opened() as reader:
            body = padded({"prompt": text}, length)
            return await num_iterations(reader.answer(tokenize, body, context, ""))

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
            first = await reader.answer(tokenize, body, context, "")
            (worker,) = workers()
            worker.kill()
            assert gone([worker])
            assert await reader.answer(tokenize, body, context, "") == first
            others = workers()
        assert len(others) == 1
        assert gone(others)

    asyncio.run(run())


def test_a_full_size_class_refuses_and_says_when_to_come_again(context: InputContext) -> None:
    body = padded({"prompt": "word " * 100_000}, MEDIUM_BYTES)

    async def run() -> None:
        async with opened(max_waiting=MEDIUM_BYTES) as reader:
            running, waiting = (
                asyncio.create_task(reader.answer(tokenize, body, context, each)) for each in "ab"
            )
            await asyncio.sleep(0)
            with pytest.raises(RequestError) as caught:
                await reader.answer(tokenize, body, context, "c")
            assert (caught.value.status, caught.value.code) == (503, "server_overloaded")
            assert caught.value.retry_after_s
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            third = asyncio.create_task(reader.answer(tokenize, body, context, "c"))
            assert await third == await running

    asyncio.run(run())


def test_a_short_body_does_not_wait_for_long_ones(context: InputContext) -> None:
    async def run(order: Callable[[str], None]) -> None:
        async with opened() as reader:

            async def answer(name: str, length: int) -> None:
                body = padded({"prompt": "word " * ((length - 100) // 5)}, length)
                await reader.answer(tokenize, body, context, "")
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
