"""Tells what a model can be asked for, from its engine, its chat template and its formats."""

from quire.server.app.models.wire import ModelAbilities
from quire.server.models.served_model import ServedModel


def model_abilities(model: ServedModel) -> ModelAbilities | None:
    """Return what the model can be asked for; None until it has been loaded once."""
    facts, tokenizer, formats = model.known_facts, model.tokenizer, model.output_formats
    if facts is None or tokenizer is None:
        return None
    template, embeddings = tokenizer.template, facts.embeddings
    goes_on = facts.generates
    takes_tools = (
        goes_on
        and template is not None
        and formats.tools is not None
        and (template.takes_tools or formats.tools.in_text)
    )
    return ModelAbilities(
        completion=goes_on,
        chat=goes_on and template is not None,
        tools=takes_tools,
        reasoning=goes_on and formats.reasoning is not None,
        structured_outputs=goes_on and bool(facts.eos_token_ids),
        embeddings=embeddings is not None and not embeddings.why_not,
        rerank=facts.scores is not None,
        tool_format=formats.tools_name if takes_tools else None,
    )


def model_kind(model: ServedModel) -> str:
    """Return what a model is for: `generate`, `embed` where it makes no tokens, or `score`."""
    facts = model.known_facts
    if facts is None or facts.generates:
        return "generate"
    return "embed" if facts.scores is None else "score"
