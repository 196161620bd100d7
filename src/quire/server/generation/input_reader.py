"""Parses bodies where their size allows it, so that no body holds up what others wait for, and
checks grammars in the threads.

up to INLINE_BYTES    on the event loop, unless a grammar in them may be long to convert
up to THREAD_BYTES    in a thread of a few
up to MEDIUM_BYTES    in a worker process
larger                in another worker process, one at a time
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import NamedTuple, TypeVar

import anyio
from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from quire.server.errors import SERVER_ERROR, TOO_LARGE, Overloaded, RequestError
from quire.server.generation.input_worker import PackedInput, ParseTask, run_task, unpack
from quire.server.generation.named_model import NamedModel, named_model
from quire.server.generation.parsed_input import (
    DirectResponse,
    InputParser,
    ParsedInput,
    TokenizedRequest,
)
from quire.server.generation.prompts import WorkerNeeded
from quire.server.grammars.check import (
    MAX_CHECK_CPU_S,
    SpecialTokens,
    check_grammar,
    check_within,
    may_explode,
    takes_too_long,
    vocabulary_of,
)
from quire.server.grammars.compose import Grammar
from quire.server.grammars.validity import Validity, ValueCheck, check_values
from quire.server.http.fair_queue import FairQueue, QueueFull
from quire.server.models.input_context import InputContext
from quire.server.text.bounded_work import MAX_CPU_S

Made = TypeVar("Made")

INLINE_BYTES = 4 * 1024
INLINE_GRAMMAR_BYTES = 1024
"""A grammar in GBNF of this size takes up to 6 ms to convert, one of INLINE_BYTES up to 40; a
schema that is made to be hard takes as long, and one with patterns at any size."""
_LONG_TO_READ = (b'grammar"', b'schema"', b'guided_json"', b'outputs"', b'parameters"', b"\\u")
THREAD_BYTES = 64 * 1024
MEDIUM_BYTES = 1024 * 1024
NUM_THREADS = 2
BYTES_PER_S = 500_000
"""About what a busy core parses: it tells how much sooner a short body is done than a long one."""
LONGEST_READ_S = 60.0
LONGEST_CHECK_S = 10.0
"""An answer waits no longer to be checked."""
UNCHECKED_S, MAX_UNCHECKED = 60.0, 1024
"""Answers under schemas whose check has failed are not checked for so many seconds; so many schemas
are remembered."""
IDLE_S = 300.0
"""Seconds without work after which the worker processes end, and their memory is free. An agent,
whose bodies need one, may take minutes from turn to turn."""
END_WITHIN_S = 0.01


class SizeClass(NamedTuple):
    """Bodies of up to `max_bytes`, which are parsed in threads or in a process."""

    name: str
    max_bytes: int
    queue: FairQueue
    in_process: bool


class InputReader:
    """Parses the bodies of all requests, whichever model they are for.

    max_body_bytes: no body is larger.
    max_waiting: bytes of all bodies that wait in each size class.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int,
        max_waiting: int,
        clock: Callable[[], float],
    ) -> None:
        def queue(num_permits: int) -> FairQueue:
            return FairQueue(num_permits, max_waiting, BYTES_PER_S, clock)

        self._clock = clock
        self.size_classes = (
            SizeClass("short", THREAD_BYTES, queue(NUM_THREADS), in_process=False),
            SizeClass("medium", MEDIUM_BYTES, queue(1), in_process=True),
            SizeClass("long", max(max_body_bytes, MEDIUM_BYTES), queue(1), in_process=True),
        )
        self._unchecked: OrderedDict[bytes, float] = OrderedDict()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="read-input")
        num_readers = sum(size_class.in_process for size_class in self.size_classes)
        self._workers = WorkerPool(num_readers + NUM_THREADS)
        self._readings: set[asyncio.Task[object]] = set()

    async def prompts(
        self, parse: InputParser, body: bytes, context: InputContext, tenant: str
    ) -> TokenizedRequest:
        """Return a request for outputs, its prompts in tokens. Raises RequestError."""
        read = await self._read(parse, body, context, tenant)
        assert isinstance(read, TokenizedRequest)
        if read.grammar is None:
            return read
        began_s = self._clock()
        if not read.grammar.has_coarse_form:
            await self._check(read.grammar, context, tenant, MAX_CHECK_CPU_S)
            return replace(read, check_s=self._clock() - began_s)
        # A grammar and its coarse form share the time that one may have.
        try:
            await self._check(read.grammar, context, tenant, MAX_CHECK_CPU_S / 2)
        except RequestError as fault:
            read = await self._coarse(parse, body, context, tenant, fault)
        return replace(read, check_s=self._clock() - began_s)

    async def _coarse(
        self,
        parse: InputParser,
        body: bytes,
        context: InputContext,
        tenant: str,
        fault: RequestError,
    ) -> TokenizedRequest:
        """Return a request with its grammar in its coarse form. Raises `fault`, that of the grammar
        in its other form, where that has a fault too."""
        context = context._replace(coarse_grammars=True)
        try:
            read = await self._read(parse, body, context, tenant)
            assert isinstance(read, TokenizedRequest)
            assert read.grammar is not None
            await self._check(read.grammar, context, tenant, MAX_CHECK_CPU_S / 2)
        except RequestError:
            raise fault from None
        return read

    async def named_model(self, body: bytes, tenant: str) -> NamedModel:
        """Return which model a body names. Raises RequestError."""
        if len(body) <= MEDIUM_BYTES:
            return named_model(body)
        read = partial(self._workers.name, body)
        return await self._queued(self.size_classes[-1], read, tenant, len(body))

    async def _check(
        self, grammar: Grammar, context: InputContext, tenant: str, max_cpu_s: float
    ) -> None:
        """Check a grammar in a thread or a process, when it is its turn. Raises RequestError."""
        check = partial(self._check_now, grammar, context, max_cpu_s)
        await self._queued(self.size_classes[0], check, tenant, len(grammar.text))

    async def _check_now(self, grammar: Grammar, context: InputContext, max_cpu_s: float) -> None:
        loop = asyncio.get_running_loop()
        vocabulary = vocabulary_of(context.facts, context.tokenizer)
        if may_explode(grammar):
            await self._workers.check(grammar, vocabulary, max_cpu_s)
        else:
            await loop.run_in_executor(self._threads, check_grammar, grammar, vocabulary)

    async def validity(self, checks: tuple[ValueCheck, ...], tenant: str) -> Validity:
        """Return whether values are of their schemas, checked in a process, in turn with grammars:
        more processes would be more memory. A schema whose check takes too long is not checked
        again for a while, since each try holds the answers of others up."""
        check = partial(self._checked, checks, tenant)
        num_bytes = sum(len(each.schema) + len(each.value) for each in checks)
        try:
            async with asyncio.timeout(LONGEST_CHECK_S):
                return await self._queued(self.size_classes[0], check, tenant, num_bytes)
        except (TimeoutError, Overloaded):
            return Validity.UNCHECKED

    async def _checked(self, checks: tuple[ValueCheck, ...], tenant: str) -> Validity:
        known, now = self._unchecked, self._clock()
        digest = sha256(repr([tenant, *(each.schema for each in checks)]).encode()).digest()
        if known.get(digest, 0.0) > now:
            return Validity.UNCHECKED
        checked = await self._workers.validity(checks)
        if checked is Validity.UNCHECKED:
            known[digest] = now + UNCHECKED_S
            known.move_to_end(digest)
            if len(known) > MAX_UNCHECKED:
                known.popitem(last=False)
        return checked

    async def answer(
        self, parse: InputParser, body: bytes, context: InputContext, tenant: str
    ) -> DirectResponse:
        """Return the answer to a request that needs no engine. Raises RequestError."""
        read = await self._read(parse, body, context, tenant)
        assert isinstance(read, DirectResponse)
        return read

    async def _read(
        self, parse: InputParser, body: bytes, context: InputContext, tenant: str
    ) -> ParsedInput:
        """Parse a body, at once where it is small, and with a template of its own in a worker."""
        try:
            return await self._read_plain(parse, body, context, tenant)
        except WorkerNeeded:
            render = partial(self._render, parse, body, context)
            return await self._queued(self.size_classes[-1], render, tenant, len(body))

    async def _read_plain(
        self, parse: InputParser, body: bytes, context: InputContext, tenant: str
    ) -> ParsedInput:
        if _is_read_at_once(body):
            return parse(body, context)
        size_class = next(
            size_class for size_class in self.size_classes if len(body) <= size_class.max_bytes
        )
        run = self._in_process if size_class.in_process else self._in_thread
        return await self._queued(size_class, partial(run, parse, body, context), tenant, len(body))

    async def _queued(
        self,
        size_class: SizeClass,
        work: Callable[[], Coroutine[None, None, Made]],
        tenant: str,
        num_bytes: int,
    ) -> Made:
        """Do some work when it is its turn. Cancelling leaves the queue; what runs already goes on
        to its end and holds its permit as long: else a client that comes and goes would have more
        than its share."""
        try:
            await size_class.queue.acquire(tenant, num_bytes)
        except QueueFull as full:
            wait_s = size_class.queue.waiting_bytes / BYTES_PER_S
            raise Overloaded(f"The server is full: {full}.", wait_s) from None
        reading = asyncio.create_task(work())
        self._readings.add(reading)
        reading.add_done_callback(self._readings.discard)
        reading.add_done_callback(lambda _: size_class.queue.release())
        return await asyncio.shield(reading)

    async def _in_thread(
        self, parse: InputParser, body: bytes, context: InputContext
    ) -> ParsedInput:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, parse, body, context)

    async def _in_process(
        self, parse: InputParser, body: bytes, context: InputContext
    ) -> ParsedInput:
        task = ParseTask(
            parse,
            body,
            context.limits,
            context.source,
            coarse_grammars=context.coarse_grammars,
        )
        return await unpack(await self._workers.submit(task))

    async def _render(self, parse: InputParser, body: bytes, context: InputContext) -> ParsedInput:
        task = ParseTask(
            parse,
            body,
            context.limits,
            context.source,
            renders_own_template=True,
            coarse_grammars=context.coarse_grammars,
        )
        return await unpack(await self._workers.render(task))

    async def close(self) -> None:
        """End threads and processes; what still waits is not parsed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._workers.end()


def _is_read_at_once(body: bytes) -> bool:
    """Return whether a body is parsed on the event loop. The name of a field may be written with
    escapes."""
    if len(body) <= INLINE_GRAMMAR_BYTES:
        return b"pattern" not in body and b"\\u" not in body
    return len(body) <= INLINE_BYTES and not any(each in body for each in _LONG_TO_READ)


class WorkerPool:
    """A pool of at most `max_workers` processes, started when there is work and ended when there is
    none."""

    def __init__(self, max_workers: int) -> None:
        self._limiter = CapacityLimiter(max_workers)
        self._num_alive = 0
        self._idle: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    async def submit(self, task: ParseTask) -> PackedInput:
        """Run a task in a worker. Raises RequestError where it takes too long, or ends its process
        twice."""
        try:
            with anyio.fail_after(LONGEST_READ_S):
                return await self._run_again_if_broken(task)
        except TimeoutError:
            raise RequestError(
                f"The request body took longer than {LONGEST_READ_S:g} s to read: send less.",
                code="request_too_large",
                status=TOO_LARGE,
            ) from None
        except BrokenWorkerProcess as error:
            why = f": {error.__cause__}" if error.__cause__ is not None else "."
            raise RequestError(
                f"The process that read the request body has ended{why}",
                code="internal",
                status=SERVER_ERROR,
            ) from error

    async def name(self, body: bytes) -> NamedModel:
        """Read in a worker which model a body names. Raises RequestError."""
        return await self._run(partial(named_model, body))

    async def _run_again_if_broken(self, task: ParseTask) -> PackedInput:
        """Run a task, again if its process has ended: somebody else may have ended an idle process,
        but a body that ends two is the cause."""
        try:
            return await self._run(partial(run_task, task))
        except BrokenWorkerProcess:
            return await self._run(partial(run_task, task))

    async def render(self, task: ParseTask) -> PackedInput:
        """Run a task that renders the template of a request. Raises RequestError where it takes too
        long, which ends the worker."""
        try:
            with anyio.fail_after(LONGEST_READ_S):
                return await self._run(partial(run_task, task))
        except (TimeoutError, BrokenWorkerProcess):
            raise RequestError(
                f"Invalid 'chat_template': it takes more than {MAX_CPU_S:g} s to render.",
                param="chat_template",
            ) from None

    async def check(
        self, grammar: Grammar, vocabulary: SpecialTokens, max_cpu_s: float = MAX_CHECK_CPU_S
    ) -> None:
        """Check a grammar in a worker. Raises RequestError for one that is not valid or takes too
        long."""
        try:
            with anyio.fail_after(LONGEST_READ_S):
                await self._run(partial(check_within, grammar, vocabulary, max_cpu_s))
        except (TimeoutError, BrokenWorkerProcess):
            raise takes_too_long(grammar, max_cpu_s) from None

    async def validity(self, checks: tuple[ValueCheck, ...]) -> Validity:
        """Check values against their schemas in a worker."""
        try:
            return await self._run(partial(check_values, checks))
        except BrokenWorkerProcess:
            return Validity.UNCHECKED

    async def _run(self, work: Callable[[], Made]) -> Made:
        if self._idle is not None:
            self._idle.cancel()
        try:
            self._num_alive = max(self._num_alive, self._limiter.borrowed_tokens + 1)
            return await to_process.run_sync(work, cancellable=True, limiter=self._limiter)
        except BrokenWorkerProcess:
            self._num_alive -= 1
            raise
        finally:
            if self._limiter.borrowed_tokens == 0:
                self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_soon)

    def _end_soon(self) -> None:
        self._ending = asyncio.get_running_loop().create_task(self.end())

    async def end(self) -> None:
        """End all processes. A call that is cancelled ends its process: that is how anyio ends
        one."""
        while self._num_alive:
            self._num_alive -= 1
            with anyio.move_on_after(END_WITHIN_S), suppress(BrokenWorkerProcess):
                await to_process.run_sync(
                    time.sleep, LONGEST_READ_S, cancellable=True, limiter=self._limiter
                )
