"""`min_tokens`: tokens that end the request are banned until it has this number of outputs."""

from dataclasses import dataclass

from quire.engine.sampling.logits_processor import ProcessorContext, RowEdits


@dataclass(slots=True)
class MinTokens:
    """Bans `end_ids` for the next `num_missing` tokens."""

    end_ids: tuple[int, ...]
    num_missing: int

    @property
    def is_done(self) -> bool:
        return self.num_missing <= 0

    def accept(self, token_id: int) -> None:
        self.num_missing -= 1

    def edit(self, edits: RowEdits) -> None:
        edits.ban(self.end_ids)


def build_min_tokens(context: ProcessorContext) -> MinTokens | None:
    """Return a processor for a request that could end too early."""
    stopping = context.stopping
    end_ids = stopping.eos_token_ids + stopping.stop_token_ids
    num_missing = stopping.min_tokens - len(context.output_ids)
    return MinTokens(end_ids, num_missing) if end_ids and num_missing > 0 else None
