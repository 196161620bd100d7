"""`repetition_penalty`, `frequency_penalty` and `presence_penalty`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.engine.sampling.logits_processor import Penalties, ProcessorContext, RowEdits
from quire.engine.sampling.seen_tokens import SeenTokens


@dataclass(slots=True)
class TokenPenalties:
    """Penalizes the tokens of a request's output; a repetition penalty also those of its prompt.

    Tokens are counted when they are needed: a long prompt not before its last chunk is computed.
    """

    penalties: Penalties
    _prompt: Sequence[int]
    _outputs: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return False

    def accept(self, token_id: int) -> None:
        self._outputs.append(token_id)

    def edit(self, edits: RowEdits) -> None:
        seen = self.penalties.seen
        seen.add(self._prompt, are_outputs=False)
        seen.add(self._outputs, are_outputs=True)
        self._prompt, self._outputs = (), []
        edits.penalise(self.penalties)


def build_token_penalties(context: ProcessorContext) -> TokenPenalties | None:
    """Return a processor for a request with a penalty that is on."""
    params = context.sampling
    if params.repetition_penalty == 1 and not (params.frequency_penalty or params.presence_penalty):
        return None
    penalties = Penalties(
        SeenTokens(), params.repetition_penalty, params.frequency_penalty, params.presence_penalty
    )
    prompt = context.token_ids[: context.num_prompt_tokens]
    return TokenPenalties(penalties, prompt, list(context.output_ids))
