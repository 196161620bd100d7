"""The pairs of texts of a rerank or score request, in tokens."""

from collections.abc import Sequence
from typing import NamedTuple

from quire.server.apis.scoring.protocol import (
    RerankRequest,
    ScoreRequest,
    ScoringFields,
    TextDocument,
)
from quire.server.errors import RequestError
from quire.server.generation.checks import check_prompt_length, check_token_ids
from quire.server.generation.context import Prompt
from quire.server.generation.prompts import WHAT_FITS, check_truncation, refuse_longer
from quire.server.models.input_context import InputContext


class Pair(NamedTuple):
    """Two texts, and the path of the field that the second stands in."""

    first: str
    second: str
    field: str


def check_scoring(request: ScoringFields, context: InputContext) -> None:
    """Check a request against the model. Raises RequestError."""
    if context.facts.scores is None:
        raise RequestError(
            f"The model is no cross-encoder ({context.facts.model_type}): it scores no pairs of "
            "texts. Compare its embeddings, if it gives any, or serve a reranker.",
            param="model",
            code="unsupported_model",
        )
    check_truncation(request.truncate_prompt_tokens, None)


def rerank_pairs(request: RerankRequest) -> tuple[Pair, ...]:
    """Return the query with each document."""
    texts = map(document_text, request.documents)
    return tuple(
        Pair(request.query, text, f"documents[{index}]") for index, text in enumerate(texts)
    )


def score_pairs(request: ScoreRequest) -> tuple[Pair, ...]:
    """Return each pair. Raises RequestError where they do not go together."""
    first, second = request.text_1, request.text_2
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        raise RequestError(
            f"'text_1' has {len(first)} texts and 'text_2' {len(second)}: as many are wanted, or "
            "one of either.",
            param="text_2",
        )
    num_pairs = max(len(first), len(second))
    return tuple(
        Pair(_at(first, index), _at(second, index), f"text_2[{min(index, len(second) - 1)}]")
        for index in range(num_pairs)
    )


def _at(texts: Sequence[str], index: int) -> str:
    return texts[0] if len(texts) == 1 else texts[index]


def document_text(document: str | TextDocument) -> str:
    """Return the text of a document."""
    return document if isinstance(document, str) else document.text


def read_pairs(
    pairs: Sequence[Pair], request: ScoringFields, context: InputContext
) -> tuple[Prompt, ...]:
    """Return the pairs in tokens. Raises RequestError."""
    most = context.limits.max_outputs
    if len(pairs) > most:
        raise RequestError(
            f"{len(pairs)} pairs are more than the {most} that this server holds at once.",
            param=pairs[-1].field.partition("[")[0],
        )
    return tuple(_read_pair(pair, request, context) for pair in pairs)


def _read_pair(pair: Pair, request: ScoringFields, context: InputContext) -> Prompt:
    most, limit = context.facts.max_model_len, request.truncate_prompt_tokens
    limit = most if limit == WHAT_FITS else limit
    if limit is None:
        refuse_longer(pair.first + pair.second, pair.field, context, at_least=0)
    tokens = context.tokenizer.encode_pair(pair.first, pair.second)
    num_cut = 0 if limit is None else max(len(tokens.token_ids) - limit, 0)
    first, end = tokens.second
    if num_cut and num_cut >= end - first:
        raise RequestError(
            f"Invalid 'truncate_prompt_tokens': it is {limit}, which leaves nothing of "
            f"'{pair.field}' beside the other text and special tokens.",
            param="truncate_prompt_tokens",
        )
    token_ids = tokens.token_ids[: end - num_cut] + tokens.token_ids[end:]
    check_prompt_length(len(token_ids), pair.field, most)
    check_token_ids(token_ids, context.facts.vocab_size, pair.field)
    return Prompt(token_ids, pair.field, num_cut=num_cut, second_text=tokens.type_starts)
