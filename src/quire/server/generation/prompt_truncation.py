"""`truncate_prompt_tokens`: prompts are cut where the client asks for it, and never otherwise."""

from collections.abc import Sequence
from typing import NamedTuple

from quire.server.errors import RequestError
from quire.server.generation.context import Prompt
from quire.server.generation.input import ChatInput, Input, OutputOptions, TruncationSide
from quire.server.models.input_context import InputContext

WHAT_FITS = -1
"""Asks for as many tokens as the context holds beside the output."""


class Truncation(NamedTuple):
    """The most tokens, 1 or more, that are left of a prompt, and the side that is cut. A beginning
    of sequence, `bos_token_id`, stays and is counted; None where the model has none."""

    most: int
    side: TruncationSide
    bos_token_id: int | None

    def cut(self, prompt: Prompt) -> Prompt:
        """Return what is left. Where that is not all, it has lost the text it was made of."""
        token_ids = prompt.token_ids
        num_cut = len(token_ids) - self.most
        if num_cut <= 0:
            return prompt
        left = token_ids[: self.most]
        if self.side is TruncationSide.LEFT:
            num_kept = int(token_ids[0] == self.bos_token_id)
            left = token_ids[:num_kept] + token_ids[num_cut + num_kept :]
        return prompt._replace(token_ids=left, text=None, num_cut=num_cut)


def truncation_of(given: Input, context: InputContext) -> Truncation | None:
    """Return how the prompts of an input are cut, None where they are not. Raises RequestError."""
    most, side = given.options.truncate_prompt_tokens, given.options.truncation_side
    if most is None:
        return None
    if side is TruncationSide.RIGHT and isinstance(given, ChatInput):
        raise RequestError(
            "Invalid 'truncation_side': must be 'left' for a chat, whose last tokens begin the "
            "answer.",
            param="truncation_side",
        )
    if most == WHAT_FITS:
        most = _num_that_fit(given.options, context.facts.max_model_len)
    return Truncation(most, side or TruncationSide.LEFT, context.tokenizer.bos_token_id)


def check_truncation(most: int | None, side: TruncationSide | None) -> None:
    """Check the fields of a request that say how its prompts are cut. Raises RequestError."""
    if most is None and side is not None:
        raise RequestError(
            "'truncation_side' is only allowed with 'truncate_prompt_tokens'.",
            param="truncation_side",
        )
    if most == 0:
        raise RequestError(
            "Invalid 'truncate_prompt_tokens': must be 1 or more, or -1 for what fits.",
            param="truncate_prompt_tokens",
        )


def _num_that_fit(options: OutputOptions, max_model_len: int) -> int:
    """Return the tokens of the context that the output leaves, of which it wants at least one."""
    asked = options.default_max_tokens if options.max_tokens is None else options.max_tokens
    num_outputs = max(asked or 1, 1)
    if num_outputs >= max_model_len:
        raise RequestError(
            f"The model's context is {max_model_len} tokens and the output is asked to have up to "
            f"{num_outputs}: no room is left for a prompt.",
            param=options.path("max_tokens"),
            code="context_length_exceeded",
        )
    return max_model_len - num_outputs


def truncation_warnings(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """Return a warning that says what was cut, if anything was."""
    cut = [prompt.num_cut for prompt in prompts if prompt.num_cut]
    if not cut:
        return ()
    of = f" of {len(cut)} prompts" if len(prompts) > 1 else ""
    return (f"truncate_prompt_tokens cut {sum(cut)} prompt tokens{of}",)
