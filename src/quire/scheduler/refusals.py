"""Refuses requests that can never be served, or cannot be taken now; each refusal says the
numbers."""

from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.pinning import pins_full
from quire.scheduler.policy import TenantId
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import HOLDING_NOBODY, Reason
from quire.scheduler.request import NewRequest, Request
from quire.scheduler.step import Refusal


def never_served(new: NewRequest, config: SchedulerConfig, cache: KVCache) -> Refusal | None:
    """Return why no amount of waiting would let this request run, or None."""
    num_prompt, max_tokens = len(new.prompt_token_ids), new.stopping.max_tokens
    num_blocks = cache.max_blocks(num_prompt + max_tokens)
    if num_prompt == 0:
        return Refusal(new.id, Reason.PROMPT_EMPTY, "the prompt has no tokens", "prompt")
    if num_prompt + max_tokens > config.max_model_len:
        message = (
            f"{num_prompt} prompt tokens and {max_tokens} output tokens are "
            f"{num_prompt + max_tokens}, more than the context of {config.max_model_len}"
        )
        return Refusal(new.id, Reason.CONTEXT_EXCEEDED, message, "max_tokens")
    if num_blocks > cache.num_usable_blocks:
        message = (
            f"{num_prompt} prompt tokens and {max_tokens} output tokens need {num_blocks} KV "
            f"blocks, more than the {cache.num_usable_blocks} there are"
        )
        return Refusal(new.id, Reason.NEVER_FITS, message, "max_tokens")
    return pins_full(new, config, cache)


def fork_differs(new: NewRequest, source: Request | None) -> Refusal | None:
    """Return a refusal if the request's prompt is not that of its source. A source that has ended,
    or was never here, only means that there is nothing to share.
    """
    if source is None:
        return None
    if new.prompt_token_ids == source.new.prompt_token_ids and new.sharing == source.new.sharing:
        return None
    message = f"request {source.id!r}, which it forks from, has another prompt or cache salt"
    return Refusal(new.id, Reason.FORK_DIFFERS, message)


def queue_full(
    new: NewRequest,
    tenant: TenantId,
    config: SchedulerConfig,
    waiting: WaitingQueue,
    *,
    num_running: int,
) -> Refusal | None:
    """Return a refusal if the queue has as many requests as it may.

    More may wait than may queue if some can start at once; none can where the first was already
    held back. A tenant that has less than its share of a full queue still gets in.
    """
    head = waiting.head
    last = None if head is None else head.timeline[-1].reason
    held_back = last is not None and last.lasts and last not in HOLDING_NOBODY
    num_places = 0 if held_back else config.max_num_seqs - num_running
    if len(waiting) < config.max_num_queued_reqs + num_places:
        return None
    share, num_own = waiting.share(tenant, new.weight), waiting.num_in(tenant)
    if share == 1:
        message = (
            f"{len(waiting)} requests wait, the most that may: {config.max_num_queued_reqs} beside "
            f"the {num_places} that can start at once"
        )
        return Refusal(new.id, Reason.QUEUE_FULL, message)
    if num_own < share * config.max_num_queued_reqs:
        return None
    message = (
        f"{num_own} requests of this tenant wait, and its share of the "
        f"{config.max_num_queued_reqs} that may is {share:.0%}"
    )
    return Refusal(new.id, Reason.OVER_SHARE, message)
