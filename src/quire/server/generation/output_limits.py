"""Limits how many tokens and log probabilities outputs may have, once the prompts are tokens."""

from collections.abc import Sequence

from quire.engine.messages import EngineFacts
from quire.scheduler.policy import PolicyName
from quire.scheduler.request import NewRequest
from quire.server.errors import ContextTooLong, Lengths, RequestError
from quire.server.generation.checks import NO_TOKENS_LEFT, prompt_too_long
from quire.server.generation.context import Prompt
from quire.server.generation.input import OutputOptions

MAX_LOGPROBS_KEPT = 2**22
"""Log probabilities that one answer may hold at once: some 100 MB of JSON."""
PROMPT_LOGPROB_WEIGHT = 3
"""One of `prompt_logprobs`, with its rank and text, takes as much JSON as so many others."""


def check_num_logprobs(
    requests: Sequence[NewRequest], *, keeps_output: bool, sends_prompts: bool = False
) -> None:
    """Raise RequestError for more log probabilities than one answer may hold in memory.

    Those of a prompt are in memory at once, and so are those of outputs that are answered as one
    body (`keeps_output`). With `sends_prompts` those of prompts are sent as `prompt_logprobs`.
    """
    num_kept = 0
    weight = PROMPT_LOGPROB_WEIGHT if sends_prompts else 1
    for each in requests:
        if each.prompt_logprobs is not None:
            num_kept += weight * len(each.prompt_token_ids) * (1 + each.prompt_logprobs)
        if each.sampling.num_logprobs is not None and keeps_output:
            num_each = 1 + each.sampling.num_logprobs + len(each.sampling.logprob_token_ids)
            num_kept += each.stopping.max_tokens * num_each
    if num_kept > MAX_LOGPROBS_KEPT:
        remedy = ", or for a stream" if keeps_output else ""
        field = "prompt_logprobs" if sends_prompts else "logprobs"
        raise RequestError(
            f"{len(requests)} outputs with '{field}' may have {num_kept} log probabilities"
            f"{f' (those of prompts count {weight} times)' if sends_prompts else ''}, "
            f"more than the {MAX_LOGPROBS_KEPT} of one answer: ask for fewer outputs, tokens or "
            f"log probabilities at once{remedy}.",
            param=field,
        )


def check_priority(priority: int | None, policy: PolicyName) -> None:
    """Raise RequestError for a priority that the policy of this server would ignore."""
    if priority and policy is not PolicyName.PRIORITY:
        raise RequestError(
            f"'priority' is {priority}, but this server serves by {policy}: only "
            "--scheduling-policy priority looks at it.",
            param="priority",
        )


def num_output_tokens(prompt: Prompt, options: OutputOptions, facts: EngineFacts) -> int:
    """Return how many tokens the output may have. Raises RequestError with all the numbers."""
    most, num_prompt = facts.max_model_len, len(prompt.token_ids)
    available = most - num_prompt
    if available < 1:
        why = NO_TOKENS_LEFT
        if options.drops_output:
            why = (
                f"a prompt without an output may have at most {most - 1}, since the engine draws "
                "one token after it, which is thrown away"
            )
        raise prompt_too_long(num_prompt, prompt.field, most, why)
    if options.max_tokens is None:
        return _default_tokens(num_prompt, available, options, facts)
    # The engine samples at least one token: an output of none is one that is thrown away.
    requested = max(options.max_tokens, 1)
    if requested > available:
        raise ContextTooLong(
            f"The model's context is {most} tokens; '{prompt.field}' has {num_prompt} and the "
            f"output is asked to have up to {requested}: {requested - available} too many.",
            param=options.path("max_tokens"),
            lengths=Lengths(most, num_prompt, requested),
        )
    return requested


def _default_tokens(
    num_prompt: int, available: int, options: OutputOptions, facts: EngineFacts
) -> int:
    """Return the default, or all that the context and the KV memory hold of one request."""
    if options.default_max_tokens is not None:
        return min(options.default_max_tokens, available)
    return max(min(available, facts.memory.max_model_len_fits - num_prompt), 1)
