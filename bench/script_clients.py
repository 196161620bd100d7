"""Sends the requests of a script to a real server: prompts hold the outputs that it has given."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bench.scripts import Message, Said, Script, ScriptedTurn
from bench.trace_clients import PATH, SPECIAL_TOKENS, TIMEOUT_S, Asked
from quire.workbench.bench.exchange import build_request, exchange
from quire.workbench.bench.replies import read_response


class FoundTokens(NamedTuple):
    """The tokens of all prompts, and those of them that were found in the cache."""

    num_prompt_tokens: int
    num_found: int


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    prompt_tokens_details: _Details


class _Choice(msgspec.Struct, frozen=True):
    token_ids: tuple[int, ...]


class _Completion(msgspec.Struct, frozen=True):
    """The part of an answer that is read here."""

    choices: tuple[_Choice, ...]
    usage: _Usage


def play_script(script: Script, asked: Asked, *, num_clients: int) -> FoundTokens:
    """Send the requests in their order, at most `num_clients` at once, each after the turn before
    it in its conversation. Raises SystemExit where one fails."""
    return asyncio.run(_Player(asked, num_clients).play(script))


class _Player:
    """Sends requests; keeps the messages that it has made up and the outputs that have come."""

    def __init__(self, asked: Asked, num_clients: int) -> None:
        self._asked = asked
        self._places = asyncio.Semaphore(num_clients)
        self._messages: dict[int, Sequence[int]] = {}
        self._outputs: dict[int, Sequence[int]] = {}
        self._sent: dict[int, asyncio.Task[_Usage]] = {}

    async def play(self, script: Script) -> FoundTokens:
        latest: dict[int, asyncio.Task[_Usage]] = {}
        async with asyncio.TaskGroup() as group:
            for turn in script.turns:
                await self._places.acquire()
                if turn.conversation in latest:
                    await latest[turn.conversation]
                for part in turn.parts:
                    if isinstance(part, Said):
                        await self._sent[part.number]
                task = group.create_task(self._send(turn))
                latest[turn.conversation] = self._sent[turn.number] = task
        usages = [each.result() for each in self._sent.values()]
        return FoundTokens(
            sum(each.prompt_tokens for each in usages),
            sum(each.prompt_tokens_details.cached_tokens for each in usages),
        )

    async def _send(self, turn: ScriptedTurn) -> _Usage:
        address = self._asked.address
        request = build_request(address, PATH, self._body(turn))
        exchanged = await exchange(address, request, time.perf_counter() + TIMEOUT_S)
        status, body = read_response(exchanged)
        if status != 200:
            raise SystemExit(f"request {turn.number} failed with {status}: {body!r}")
        completion = msgspec.json.decode(body, type=_Completion)
        self._outputs[turn.number] = completion.choices[0].token_ids
        self._places.release()
        return completion.usage

    def _body(self, turn: ScriptedTurn) -> bytes:
        prompt = [token for part in turn.parts for token in self._tokens(part)]
        return msgspec.json.encode(
            {
                "model": self._asked.model,
                "prompt": prompt,
                "max_tokens": turn.num_outputs,
                "temperature": 1,
                "seed": turn.number,
                "ignore_eos": True,
                "return_token_ids": True,
            }
        )

    def _tokens(self, part: Message | Said) -> Sequence[int]:
        if isinstance(part, Said):
            return self._outputs[part.number][part.num_left_out :]
        known = self._messages.get(part.content)
        if known is None:
            draw = random.Random(f"{part.content}")
            ids = range(SPECIAL_TOKENS, self._asked.vocab_size - SPECIAL_TOKENS)
            known = self._messages[part.content] = draw.choices(ids, k=part.num_tokens)
        return known
