"""Counts the work of a step that a scheduler has decided on."""

from quire.scheduler.step import Step
from quire.workbench.simulation.step_work import StepWork


def work_of(step: Step) -> StepWork:
    """Return the work of a step. A chunk of one token behind others decodes."""
    chunks = step.chunks
    num_prefill = num_decode = num_context = num_pairs = 0
    for _, start, num_tokens, *_ in chunks:
        if num_tokens == 1 and start:
            num_decode += 1
            num_context += start + 1
        else:
            num_prefill += num_tokens
            num_pairs += num_tokens * start + num_tokens * (num_tokens + 1) // 2
    return StepWork(len(chunks), num_prefill, num_decode, num_context, num_pairs)
