"""Requests that end with their prompt and pin it: its full blocks then stay in the prefix cache.

Pinned blocks are never given to a request. So that the first of the running can always go on, pins
leave room for one request of the greatest length, and they take a bounded share of the pool.
"""

from quire.cache.admission import BlocksMissing
from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Request
from quire.scheduler.step import Refusal


def max_pinned_blocks(config: SchedulerConfig, cache: KVCache) -> int:
    """Return how many blocks may be pinned at most."""
    share = int(config.max_pinned_share * cache.num_usable_blocks)
    beside_longest = cache.num_usable_blocks - cache.max_blocks(config.max_model_len)
    return max(min(share, beside_longest), 0)


def pins_full(new: NewRequest, config: SchedulerConfig, cache: KVCache) -> Refusal | None:
    """Return why the prompt of a request cannot be pinned beside the current pins, or None."""
    if not new.pins_prompt:
        return None
    most, num_pinned = max_pinned_blocks(config, cache), cache.pins.num_blocks
    num_new = cache.pins.num_new(cache.open_table(new.sharing), new.prompt_token_ids)
    if num_pinned + num_new <= most:
        return None
    message = (
        f"{num_new} KV blocks more would be pinned beside {num_pinned}, and pins may hold {most} "
        f"of the {cache.num_usable_blocks}: {config.max_pinned_share:g} of them "
        f"(--max-pinned-share), and never those that a request of {config.max_model_len} tokens "
        f"needs, {cache.max_blocks(config.max_model_len)}"
    )
    return Refusal(new.id, Reason.PINS_FULL, message)


def pin_prompt(request: Request, config: SchedulerConfig, cache: KVCache, now: float) -> None:
    """Pin the computed prompt of a request that asks for it, and note the result in its timeline.
    Other prompts may have been pinned since it was accepted."""
    if not request.new.pins_prompt:
        return
    pinned = cache.pins.pin(
        request.id,
        request.table,
        request.new.prompt_token_ids,
        max_blocks=max_pinned_blocks(config, cache),
    )
    if isinstance(pinned, BlocksMissing):
        request.note(now, Reason.NOT_PINNED, pinned.num_blocks)
    elif pinned is None:
        request.note(now, Reason.PIN_LOST)
    else:
        request.note(now, Reason.PINNED, pinned)
