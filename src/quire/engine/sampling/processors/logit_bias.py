"""`logit_bias`: numbers that are added to the logits of token ids."""

from dataclasses import dataclass

from quire.engine.sampling.logits_processor import ProcessorContext, RowEdits


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Adds the same biases, pairs of token id and number, for every token."""

    biases: tuple[tuple[int, float], ...]

    @property
    def is_done(self) -> bool:
        return False

    def accept(self, token_id: int) -> None:
        """Change nothing: biases depend on no token."""

    def edit(self, edits: RowEdits) -> None:
        edits.add(self.biases)


def build_logit_bias(context: ProcessorContext) -> LogitBias | None:
    """Return a processor for a request with biases."""
    biases = context.sampling.logit_bias
    return LogitBias(biases) if biases else None
