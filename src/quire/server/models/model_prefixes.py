"""The pinned prefixes of one model: in its engine while there is one, and here to be pinned again
in the next.

           begin            take                    the engine ends, the cache is reset
    ──────────────► COMPUTING ──► PINNED ─────────► LOST or COMPUTING
                        ▲  next engine ready, cache empty │
                        └─────────────────────────────────┘
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable

from quire.engine.orders import Unpin
from quire.engines.process.client import EnginePhase
from quire.engines.process.token_stream import EngineDown, RequestRefused
from quire.engines.protocol import EngineProtocol
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Finish
from quire.server.errors import RequestError
from quire.server.models.pinned_prefix import (
    PinnedPrefix,
    PinOutcome,
    Prefix,
    PrefixState,
    outcome_of,
)

logger = logging.getLogger(__name__)

MAX_PER_TENANT = 64
MAX_PREFIXES = 1024
"""Pinned prefixes of one model."""
MAX_TOKENS = 1 << 24
"""Tokens of all pinned prefixes of one model that the server keeps: 64 MiB."""
RETRY_S = 1.0
"""A prefix that could not be pinned, but may be soon, is tried again after so long."""
_FULL = (Reason.QUEUE_FULL, Reason.OVER_SHARE)
_NOT_READY = "no engine of the model is ready; it is pinned again in the next one"


class ModelPrefixes:
    """Keeps what is pinned, and pins it again, one prefix after the other, when an engine is ready
    that has nothing cached."""

    def __init__(self) -> None:
        self._prefixes: dict[str, PinnedPrefix] = {}
        self._num_tokens = 0
        self._engine: EngineProtocol | None = None
        self._repinning: asyncio.Task[None] | None = None

    def add(self, prefix: PinnedPrefix, ttl_s: float | None) -> None:
        """Keep a prefix for `ttl_s` seconds, or until it is removed. Raises RequestError where
        there are too many."""
        num_own = sum(1 for each in self._prefixes.values() if each.tenant == prefix.tenant)
        for num, most, of_what in (
            (num_own, MAX_PER_TENANT, "of yours are pinned"),
            (len(self._prefixes), MAX_PREFIXES, "are pinned"),
        ):
            if num >= most:
                raise _too_many(f"{num} prefixes {of_what}, the most of a model that may be")
        num_tokens = self._num_tokens + len(prefix.pinned_token_ids)
        if num_tokens > MAX_TOKENS:
            raise _too_many(
                f"the pinned prefixes would have {num_tokens} tokens, and the server keeps at most "
                f"{MAX_TOKENS} to pin them again"
            )
        self._prefixes[prefix.id] = prefix
        self._num_tokens = num_tokens
        if ttl_s is not None:
            loop = asyncio.get_running_loop()
            prefix.expiry = loop.call_later(ttl_s, self.remove, prefix.id)

    def remove(self, prefix_id: str) -> None:
        """Pin a prefix no more, and end the request that computes it, if it is here."""
        prefix = self._prefixes.pop(prefix_id, None)
        if prefix is None:
            return
        self._num_tokens -= len(prefix.pinned_token_ids)
        if prefix.expiry is not None:
            prefix.expiry.cancel()
        self._give_up(prefix)

    def find(self, prefix_id: str) -> PinnedPrefix | None:
        """Return the prefix of this id, or None."""
        return self._prefixes.get(prefix_id)

    def of(self, tenant: str | None) -> list[PinnedPrefix]:
        """Return the prefixes of a tenant, or with None of all, the oldest first."""
        return [each for each in self._prefixes.values() if tenant in (None, each.tenant)]

    def take(self, prefix: PinnedPrefix, outcome: PinOutcome) -> None:
        """Take what became of the first request of a prefix, which is answered now."""
        prefix.take(outcome)
        prefix.is_new = False
        if prefix.state is PrefixState.COMPUTING:
            self.on_cache_empty([prefix])

    def shown(self, prefix: PinnedPrefix) -> Prefix:
        """Return a prefix as it is now."""
        state, why = prefix.state, prefix.why
        if self._engine is None or self._engine.phase is not EnginePhase.READY:
            state, why = PrefixState.LOST, _NOT_READY
        is_pinned = state is PrefixState.PINNED
        return Prefix(
            id=prefix.id,
            created_at=prefix.created_s,
            expires_at=prefix.expires_s,
            model=prefix.model,
            name=prefix.name,
            state=state,
            why=why,
            num_tokens=prefix.num_tokens,
            num_pinned_tokens=len(prefix.pinned_token_ids) if is_pinned else 0,
            num_blocks=prefix.num_blocks if is_pinned else 0,
        )

    @property
    def num_by_state(self) -> dict[PrefixState, int]:
        """The numbers of prefixes by their states."""
        nums = Counter(self.shown(each).state for each in self._prefixes.values())
        return {state: nums[state] for state in PrefixState}

    def on_engine_ready(self, engine: EngineProtocol) -> None:
        """Pin everything in an engine that is ready, and has nothing cached."""
        self._engine = engine
        self.on_cache_empty()

    def on_cache_empty(self, prefixes: Iterable[PinnedPrefix] | None = None) -> None:
        """Pin everything again, since nothing is cached any more; or these prefixes. One that a
        client waits for is computed for it anyway, and one whose computation has failed would fail
        again."""
        lost = self._prefixes.values() if prefixes is None else prefixes
        for prefix in lost:
            if not (prefix.is_new or prefix.has_failed):
                prefix.take(PinOutcome(PrefixState.COMPUTING))
        if self._next() is not None and (self._repinning is None or self._repinning.done()):
            self._repinning = asyncio.get_running_loop().create_task(self._repin())

    async def close(self) -> None:
        """Pin nothing again, and forget all."""
        for prefix in self._prefixes.values():
            if prefix.expiry is not None:
                prefix.expiry.cancel()
        if self._repinning is not None:
            self._repinning.cancel()
            await asyncio.gather(self._repinning, return_exceptions=True)

    def _next(self) -> PinnedPrefix | None:
        """Return the first prefix that is to be pinned again."""
        return next(
            (
                each
                for each in self._prefixes.values()
                if each.state is PrefixState.COMPUTING and not each.is_new
            ),
            None,
        )

    async def _repin(self) -> None:
        while (prefix := self._next()) is not None and self._engine is not None:
            await self._pin(prefix, self._engine)

    async def _pin(self, prefix: PinnedPrefix, engine: EngineProtocol) -> None:
        """Pin a prefix again, in place of what it may have pinned in this engine; later where the
        queue is full, or where the cache is reset meanwhile."""
        engine.order(Unpin(prefix.request_id))
        request = prefix.next_request()
        try:
            outcome = outcome_of(await _run(request, engine))
        except RequestRefused as refused:
            if refused.refusal.reason in _FULL:
                await asyncio.sleep(RETRY_S)
                return
            has_failed = refused.refusal.reason is Reason.QUARANTINED
            why = refused.refusal.message
            outcome = PinOutcome(PrefixState.LOST, why=why, has_failed=has_failed)
        except EngineDown as down:
            outcome = PinOutcome(PrefixState.LOST, why=str(down))
        if self._prefixes.get(prefix.id) is not prefix:
            engine.order(Unpin(request.id))
            return
        prefix.take(outcome)
        if outcome.why is not None:
            logger.warning("the prefix %s could not be pinned again: %s", prefix.id, outcome.why)
        elif outcome.state is PrefixState.COMPUTING:
            await asyncio.sleep(RETRY_S)

    def _give_up(self, prefix: PinnedPrefix) -> None:
        """End the newest request of a prefix, and what it has pinned."""
        if self._engine is not None:
            self._engine.abort(prefix.request_id)
            self._engine.order(Unpin(prefix.request_id))


async def _run(request: NewRequest, engine: EngineProtocol) -> Finish | None:
    """Return the end of a request. Raises RequestRefused or EngineDown."""
    finish = None
    stream = engine.submit(request)
    await stream.accepted()
    async for delta in stream:
        finish = delta.finish
    return finish


def _too_many(why: str) -> RequestError:
    message = f"{why[:1].upper()}{why[1:]}: delete some, or give them a 'ttl_s'."
    return RequestError(message, code="too_many_prefixes")
