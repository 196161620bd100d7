"""Tells what a model can be asked for, from its engine, its chat template and its formats."""

from quire.server.models.served_model import ServedModel
from quire.server.openai.protocol.wire import ModelAbilities


def model_abilities(model: ServedModel) -> ModelAbilities | None:
    """Return what the model can be asked for; None while it is not loaded."""
    facts, tokenizer, formats = model.facts, model.tokenizer, model.output_formats
    if facts is None or tokenizer is None:
        return None
    template, embeddings = tokenizer.template, facts.embeddings
    return ModelAbilities(
        completion=True,
        chat=template is not None,
        tools=template is not None and template.takes_tools and formats.tools is not None,
        reasoning=formats.reasoning is not None,
        structured_outputs=bool(facts.eos_token_ids),
        embeddings=embeddings is not None and not embeddings.why_not,
    )
