"""`bad_words`: sequences of token ids that an output never holds."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from quire.engine.sampling.logits_processor import ProcessorContext, RowEdits


@dataclass(slots=True)
class BadWords:
    """Bans the last token of a sequence where the output ends with those before it.

    `lasts_of` are the last tokens by what comes before them, nothing for a sequence of one token,
    and `lengths` are how long that is. `tail` are the latest outputs, as many as the longest. The
    cost of a token grows with the number of distinct lengths, not of sequences.
    """

    lasts_of: Mapping[tuple[int, ...], tuple[int, ...]]
    lengths: tuple[int, ...]
    tail: deque[int]

    @property
    def is_done(self) -> bool:
        return False

    def accept(self, token_id: int) -> None:
        self.tail.append(token_id)

    def edit(self, edits: RowEdits) -> None:
        end = tuple(self.tail)
        for length in self.lengths:
            if length <= len(end):
                edits.ban(self.lasts_of.get(end[len(end) - length :], ()))


def build_bad_words(context: ProcessorContext) -> BadWords | None:
    """Return a processor for a request with bad words, which has taken its outputs so far."""
    bad_words = context.sampling.bad_words
    if not bad_words:
        return None
    lasts_of: dict[tuple[int, ...], tuple[int, ...]] = {}
    for *before, last in bad_words:
        lasts_of[tuple(before)] = (*lasts_of.get(tuple(before), ()), last)
    lengths = tuple(sorted({len(before) for before in lasts_of}))
    return BadWords(lasts_of, lengths, deque(context.output_ids, maxlen=lengths[-1]))
