"""The codes of all decisions of the scheduler; a branch without one is a defect."""

from enum import StrEnum


class Reason(StrEnum):
    """The reasons why something happens to a request. The number that goes with it in the timeline,
    and the other request that had a part in it, are said in brackets.
    """

    # queued (requests ahead)
    QUEUED = "queued"
    LATE_EXPECTED = "late_expected"  # its first token, as its target is missed already (ms late)
    COUNTS_LATER = "counts_later"  # than it came, by what it is expected to take (ms later)
    ROUTED = "routed"  # to a replica (; the replica)
    NEXT_TURN = "next_turn"  # of a session (ms since the last ended; the request of that)
    # still waiting (; behind whom, if not as the first)
    WAITS_FOR_BLOCKS = "waits_for_blocks"  # (blocks short)
    WAITS_FOR_STATE = "waits_for_state"  # running requests hold all states (states short)
    WAITS_FOR_SESSIONS = "waits_for_sessions"  # room is kept for turns expected soon (blocks short)
    WAITS_FOR_SEQUENCE = "waits_for_sequence"  # max_num_seqs are running (running)
    WAITS_FOR_BUDGET = "waits_for_budget"  # the step's token budget is spent (budget)
    WAITS_FOR_PACE = "waits_for_pace"  # prompts have had their share of the step (tokens; of whom)
    WAITS_AFTER_PREEMPTION = (
        "waits_after_preemption"  # this step took blocks back (requests preempted)
    )
    WAITS_FOR_PROMPT = "waits_for_prompt"  # of the request it forks from
    WAITS_FOR_PREFIX = "waits_for_prefix"  # it is being computed (tokens; by whom)
    WAITS_FOR_GRAMMAR = "waits_for_grammar"  # it is being compiled; nobody waits behind it
    WAITS_FOR_DISK = "waits_for_disk"  # it is being read; nobody waits behind it
    WAITS_FOR_PEER = "waits_for_peer"  # its blocks come from another engine; nobody waits behind
    WAITS_FOR_SKIPPED = "waits_for_skipped"  # one ahead may not be passed again (times it was)
    LOADED_FROM_DISK = "loaded_from_disk"  # into the prefix cache (tokens)
    LOADED_FROM_PEER = "loaded_from_peer"  # the same (tokens)
    LATE = "late"  # its prompt would miss its target, or make others; these go first (ms late)
    LET_BY = "let_by"  # one that came later goes first, since it takes less (ms; whom)
    # scheduled
    ADMITTED = "admitted"  # (tokens reused from the prefix cache)
    RESUMED = "resumed"  # (tokens reused from the prefix cache)
    FORKED = "forked"  # (tokens shared; of whom)
    SWAPPED_IN = "swapped_in"  # resumed, with what the host has kept (computed tokens)
    PACED = "paced"  # its prompt is computed in smaller parts (tokens of a step; for whose target)
    FIRST_TOKEN = "first_token"
    # not found in the prefix cache, beside what was
    MISS_TOO_SHORT = "miss_too_short"  # not one full block before the last token (tokens)
    MISS_DIFFERS = "miss_differs"  # (first token that differs from what is cached)
    MISS_EVICTED = "miss_evicted"  # was cached once (first token of it)
    MISS_SALT = "miss_salt"  # is cached, but for others (first token of it)
    MISS_STATE = "miss_state"  # its K and V are cached, no snapshot of the states (tokens of them)
    MISS_NEW = "miss_new"  # nothing like it is known (first token of it)
    # of a prompt that is to be pinned, once it is computed
    PINNED = "pinned"  # (blocks)
    NOT_PINNED = "not_pinned"  # others were pinned meanwhile (blocks too many)
    PIN_LOST = "pin_lost"  # the prefix cache was reset meanwhile
    # put back
    PREEMPTED_FOR_BLOCKS = "preempted_for_blocks"  # (tokens thrown away; for whom)
    PREEMPTED_FOR_URGENT = "preempted_for_urgent"  # (tokens thrown away; for whom)
    SWAPPED_OUT = "swapped_out"  # kept by the host (computed tokens; for whom)
    ENGINE_RESTARTED = "engine_restarted"  # it goes on in a new engine (outputs kept)
    # ended
    STOP_TOKEN = "stop_token"  # (token id)
    END_OF_SEQUENCE = "end_of_sequence"  # (token id)
    MAX_TOKENS = "max_tokens"
    PROMPT_COMPUTED = "prompt_computed"  # and no output is wanted
    CONTEXT_END = "context_end"
    ABORTED = "aborted"
    NOT_FINITE = "not_finite"  # the model's logits held NaN or infinity
    STEP_FAILED = "step_failed"  # its part of a step raised an error, computed alone too
    GRAMMAR_FAILED = "grammar_failed"  # it could not be compiled or followed, or no token was left
    DEADLINE_EXCEEDED = "deadline_exceeded"  # its time limit has passed
    QUARANTINED = "quarantined"  # it crashes the engine; ended by the server, not the scheduler
    # refused
    DEADLINE_HOPELESS = "deadline_hopeless"  # it takes longer than there is time
    FORK_DIFFERS = "fork_differs"  # another prompt than the request it forks from
    PROMPT_EMPTY = "prompt_empty"
    CONTEXT_EXCEEDED = "context_exceeded"  # prompt and outputs exceed the model length
    NEVER_FITS = "never_fits"  # needs more blocks than the pool holds
    PINS_FULL = "pins_full"  # more blocks would be pinned than may be
    QUEUE_FULL = "queue_full"
    OVER_SHARE = "over_share"  # the queue is full, and its tenant has more than its share of it
    DUPLICATE_ID = "duplicate_id"

    @property
    def lasts(self) -> bool:
        """True for states which repeat from step to step."""
        return self.value.startswith("waits") or self is Reason.PACED


HOLDING_NOBODY = (
    Reason.WAITS_FOR_PREFIX,
    Reason.WAITS_FOR_GRAMMAR,
    Reason.WAITS_FOR_DISK,
    Reason.WAITS_FOR_PEER,
)
"""The reasons for which the head of the queue waits while later requests are admitted."""

PREEMPTIONS = (Reason.PREEMPTED_FOR_BLOCKS, Reason.PREEMPTED_FOR_URGENT, Reason.SWAPPED_OUT)
"""The reasons with which a running request is put back."""


class LoadSource(StrEnum):
    """A slower store that blocks of a prompt are read from where memory does not have them: a
    folder, or engines that offer theirs over the network."""

    DISK = "disk"
    PEER = "peer"

    @property
    def waits_for(self) -> Reason:
        """The reason why a request waits while it is read."""
        return Reason.WAITS_FOR_DISK if self is LoadSource.DISK else Reason.WAITS_FOR_PEER

    @property
    def loaded_from(self) -> Reason:
        """The reason in the timeline of a request that it was read for."""
        return Reason.LOADED_FROM_DISK if self is LoadSource.DISK else Reason.LOADED_FROM_PEER
