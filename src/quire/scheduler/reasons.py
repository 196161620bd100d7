"""Every decision of the scheduler has a code here; a branch without one is a defect."""

from enum import StrEnum


class Reason(StrEnum):
    """Why something happened to a request; the number beside it in the timeline is said in
    brackets.
    """

    # queued (requests ahead)
    QUEUED = "queued"
    # still waiting
    WAITS_FOR_BLOCKS = "waits_for_blocks"  # (blocks short)
    WAITS_FOR_SEQUENCE = "waits_for_sequence"  # max_num_seqs are running (running)
    WAITS_FOR_BUDGET = "waits_for_budget"  # the step's token budget is spent (budget)
    WAITS_AFTER_PREEMPTION = (
        "waits_after_preemption"  # this step took blocks back (requests preempted)
    )
    # placed
    ADMITTED = "admitted"  # (tokens reused from the prefix cache)
    RESUMED = "resumed"  # (tokens reused from the prefix cache)
    FIRST_TOKEN = "first_token"
    # put back
    PREEMPTED_FOR_BLOCKS = "preempted_for_blocks"  # (computed tokens thrown away)
    # ended
    STOP_TOKEN = "stop_token"  # (token id)
    END_OF_SEQUENCE = "end_of_sequence"  # (token id)
    MAX_TOKENS = "max_tokens"
    CONTEXT_END = "context_end"
    ABORTED = "aborted"
    NOT_FINITE = "not_finite"  # the model's logits held NaN or infinity
    # refused
    PROMPT_EMPTY = "prompt_empty"
    CONTEXT_EXCEEDED = "context_exceeded"  # prompt and outputs exceed the model length
    NEVER_FITS = "never_fits"  # needs more blocks than the pool holds
    QUEUE_FULL = "queue_full"
    DUPLICATE_ID = "duplicate_id"

    @property
    def lasts(self) -> bool:
        """True for waiting states, which repeat from step to step."""
        return self.value.startswith("waits")
