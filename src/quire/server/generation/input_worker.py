"""Parses large bodies in a process of its own: parsing JSON holds the interpreter's lock for as
long as it takes, and tokenising takes memory that only the end of a process gives back for sure.

Tasks and results are pickled; both ends are Quire's own.
"""

import asyncio
import ctypes
import gc
import os
import pickle
import signal
import sys
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from quire.server.errors import RequestError
from quire.server.generation.context import Prompt
from quire.server.generation.parsed_input import InputParser, ParsedInput, TokenizedRequest
from quire.server.generation.prompts import WorkerNeeded
from quire.server.models.input_context import InputContext, InputLimits, TokenizerSource
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer

NICENESS = 10
"""Parsing yields to the engine, which others wait for."""
KEPT_TOKENIZERS = 4
"""A worker keeps the tokenizers of so many models."""
TOKEN_ID = "I"
"""The code of an array of unsigned 32-bit integers."""
TOKENS_PER_ITERATION = 50_000
"""The event loop makes so many token ids of bytes in one iteration: about a millisecond."""


class ParseTask(NamedTuple):
    """A task for a worker: a body, and all that it takes to parse it. It may end the worker where
    it renders the template of a request."""

    parse: InputParser
    body: bytes
    limits: InputLimits
    source: TokenizerSource
    renders_own_template: bool = False
    coarse_grammars: bool = False


class PackedInput(NamedTuple):
    """The result of a worker: `head` is a pickled ParsedInput or an error, without the token
    ids of its prompts, which are 32-bit integers in `token_ids`.
    """

    head: bytes
    token_ids: tuple[bytes, ...] = ()


def run_task(task: ParseTask) -> PackedInput:
    """Parse a body, in a worker process."""
    _prepare_process()
    tokenizer = _tokenizer(task.source)
    try:
        context = InputContext(
            task.limits,
            tokenizer,
            task.source,
            in_worker=task.renders_own_template,
            coarse_grammars=task.coarse_grammars,
        )
        read = task.parse(task.body, context)
    except (RequestError, WorkerNeeded) as error:
        return PackedInput(_pickled(error))
    finally:
        _give_memory_back()
    if not isinstance(read, TokenizedRequest):
        return PackedInput(_pickled(read))
    bare = tuple(prompt._replace(token_ids=()) for prompt in read.prompts)
    return PackedInput(
        _pickled(replace(read, prompts=bare)),
        tuple(array(TOKEN_ID, prompt.token_ids).tobytes() for prompt in read.prompts),
    )


async def unpack(packed: PackedInput) -> ParsedInput:
    """Return what a worker has parsed. Raises the error that came instead.

    Long prompts are made in several iterations of the event loop.
    """
    read: ParsedInput | RequestError | WorkerNeeded = pickle.loads(packed.head)
    if isinstance(read, RequestError | WorkerNeeded):
        raise read
    if not isinstance(read, TokenizedRequest):
        return read
    return replace(read, prompts=await _with_tokens(read.prompts, packed.token_ids))


async def _with_tokens(prompts: Sequence[Prompt], token_ids: Sequence[bytes]) -> tuple[Prompt, ...]:
    made, num_made = [], 0
    for prompt, raw in zip(prompts, token_ids, strict=True):
        ids = tuple(array(TOKEN_ID, raw))
        made.append(prompt._replace(token_ids=ids))
        num_made += len(ids)
        if num_made > TOKENS_PER_ITERATION:
            num_made = 0
            await asyncio.sleep(0)
    return tuple(made)


def _pickled(value: ParsedInput | RequestError | WorkerNeeded) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


@lru_cache(maxsize=1)
def _prepare_process() -> None:
    """Do what a new process needs, once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process
    os.nice(NICENESS)


@lru_cache(maxsize=KEPT_TOKENIZERS)
def _tokenizer(source: TokenizerSource) -> TextTokenizer:
    """Load the tokenizer of a model, once for each process where there are few models."""
    tokenizer = load_tokenizer(source.model, source.revision)
    gc.freeze()  # what stays for good is not looked through after each body
    return tokenizer


def _give_memory_back() -> None:
    """Give memory back to the system: the C library would keep it for the next large body."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
