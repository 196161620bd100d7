"""Every logits processor that a request can have: adding one is a module here and a line below."""

from collections.abc import Iterable

from quire.engine.sampling.logits_processor import (
    LogitsProcessor,
    ProcessorBuilder,
    ProcessorContext,
)
from quire.engine.sampling.processors.allowed_token_ids import build_allowed_token_ids
from quire.engine.sampling.processors.bad_words import build_bad_words
from quire.engine.sampling.processors.logit_bias import build_logit_bias
from quire.engine.sampling.processors.min_tokens import build_min_tokens
from quire.engine.sampling.processors.thinking_budget import build_thinking_budget
from quire.engine.sampling.processors.token_penalties import build_token_penalties

PROCESSORS: tuple[ProcessorBuilder, ...] = (
    build_min_tokens,
    build_logit_bias,
    build_allowed_token_ids,
    build_bad_words,
    build_token_penalties,
    build_thinking_budget,
)


def build_processors(
    context: ProcessorContext, builders: Iterable[ProcessorBuilder] = PROCESSORS
) -> list[LogitsProcessor]:
    """Return the processors that a request needs, none for most."""
    built = [build(context) for build in builders]
    return [processor for processor in built if processor is not None]
