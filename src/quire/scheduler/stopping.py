"""When a request ends by what it drew: token ids, counts, the model's context."""

from quire.scheduler.reasons import Reason
from quire.scheduler.request import Request


def reason_to_stop(request: Request, max_model_len: int) -> Reason | None:
    """Judge the newest token. Up to `min_tokens` the sampler bans the stop tokens, so none is
    looked for.
    """
    stopping = request.new.stopping
    num_outputs = request.num_outputs
    if num_outputs > stopping.min_tokens:
        token_id = request.token_ids[-1]
        if token_id in stopping.eos_token_ids:
            return Reason.END_OF_SEQUENCE
        if token_id in stopping.stop_token_ids:
            return Reason.STOP_TOKEN
    if num_outputs >= stopping.max_tokens:
        return Reason.MAX_TOKENS
    if len(request.token_ids) >= max_model_len:
        return Reason.CONTEXT_END
    return None
