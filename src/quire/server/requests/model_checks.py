"""Checks of what a request asks for against the model that is served."""

from quire.server.errors import NOT_FOUND, RequestError
from quire.server.openai.protocol.capabilities import EMBEDDINGS, RERANK, SCORE
from quire.server.requests.input_context import InputContext

MAX_SHOWN_CHARS = 200


def check_model(name: str | None, context: InputContext) -> None:
    """Raise RequestError for a model that is not served."""
    if name is not None and name not in context.limits.model_names:
        raise model_not_found(name, context.limits.model_names)


def check_generates(context: InputContext) -> None:
    """Raise RequestError for a model that gives embeddings alone."""
    facts = context.facts
    if not facts.generates:
        what = "has no head that makes tokens" if facts.is_causal else "is an encoder"
        gives = f"embeddings, at {EMBEDDINGS}"
        if facts.scores is not None:
            gives = f"scores of pairs of texts, at {RERANK} and {SCORE}"
        raise RequestError(
            f"The model {what} ({facts.model_type}): it continues no text, and gives {gives}.",
            param="model",
            code="unsupported_model",
        )


def model_not_found(name: str, model_names: tuple[str, ...]) -> RequestError:
    """Return the error for a model that is not served."""
    shown, names = name[:MAX_SHOWN_CHARS], ", ".join(model_names)
    return RequestError(
        f"The model {shown!r} does not exist; this server has {names}.",
        param="model",
        code="model_not_found",
        status=NOT_FOUND,
    )


def no_effect_warnings(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return a warning that names the fields that were accepted and do nothing, if any."""
    return (f"accepted without effect: {', '.join(fields)}",) if fields else ()
