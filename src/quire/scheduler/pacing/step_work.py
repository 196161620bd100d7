"""The work of a step, as counts: what the time of a step is estimated from."""

from dataclasses import dataclass

from quire.scheduler.step import Step


@dataclass(frozen=True, slots=True)
class StepWork:
    """The counts of a step that say how much a device computes and reads.

    A sequence with one token in the step decodes; a chunk of more, or one that begins a prompt, is
    prefill.

    num_seqs: the sequences of the step, whichever they do.
    num_prefill_tokens, num_decode_tokens: the tokens that are computed, all of the step's together.
    num_context_tokens: the tokens in the contexts of the decoding sequences, the computed one
        included, summed over them.
    num_prefill_pairs: the pairs of a query and a key that it sees, summed over the chunks of
        prefill: a chunk of n tokens after c others has n * c + n * (n + 1) / 2.
    """

    num_seqs: int
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_context_tokens: int = 0
    num_prefill_pairs: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prefill_tokens + self.num_decode_tokens


def num_pairs(start: int, num_tokens: int) -> int:
    """Return the pairs of queries and keys of a chunk of a prompt."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


def work_of(step: Step) -> StepWork:
    """Return the work of a step. A chunk of one token behind others decodes."""
    chunks = step.chunks
    num_prefill = num_decode = num_context = pairs = 0
    for _, start, num_tokens, *_ in chunks:
        if num_tokens == 1 and start:
            num_decode += 1
            num_context += start + 1
        else:
            num_prefill += num_tokens
            pairs += num_pairs(start, num_tokens)
    return StepWork(len(chunks), num_prefill, num_decode, num_context, pairs)
