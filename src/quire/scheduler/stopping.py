"""Decides when a request ends (stop tokens, `max_tokens`, the model's context), and counts its
uncomputed tokens."""

from quire.scheduler.reasons import Reason
from quire.scheduler.request import Request


def reason_to_stop(request: Request, max_model_len: int) -> Reason | None:
    """Return why the newest token ends the request, or None. Up to `min_tokens` the sampler bans
    end-of-sequence and stop tokens, so that one comes only where a grammar forces it: the first has
    ended then, but a stop token is text like any other.
    """
    stopping = request.new.stopping
    num_outputs = request.num_outputs
    token_id = request.token_ids[-1]
    if token_id in stopping.eos_token_ids:
        return Reason.END_OF_SEQUENCE
    if num_outputs > stopping.min_tokens and token_id in stopping.stop_token_ids:
        return Reason.STOP_TOKEN
    if num_outputs >= stopping.max_tokens:
        return Reason.MAX_TOKENS
    if len(request.token_ids) >= max_model_len:
        return Reason.CONTEXT_END
    return None


def append_outputs(
    request: Request, token_ids: tuple[int, ...], max_model_len: int
) -> tuple[tuple[int, ...], Reason | None]:
    """Append outputs to a request up to the token that ends it. Return the appended tokens, and the
    reason of the end, or None."""
    for number, token_id in enumerate(token_ids, 1):
        request.token_ids.append(token_id)
        reason = reason_to_stop(request, max_model_len)
        if reason is not None:
            return token_ids[:number], reason
    return token_ids, None


def num_uncomputed(request: Request, max_model_len: int) -> int:
    """Return the number of uncomputed tokens, including sampled tokens that have not arrived; none
    beyond the limits of the request."""
    num_pending = request.num_pending
    if num_pending:
        num_known = len(request.token_ids) + num_pending
        num_outputs = request.num_outputs + num_pending
        if num_outputs >= request.new.stopping.max_tokens or num_known >= max_model_len:
            return 0
        return num_known - request.num_computed
    return len(request.token_ids) - request.num_computed
