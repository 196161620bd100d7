"""Says the events of timelines in whole sentences, for people: each with its number and the other
request that had a part in it."""

from collections.abc import Mapping

from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event

SENTENCES: Mapping[Reason, str] = {
    Reason.QUEUED: "Queued {place}.",
    Reason.ROUTED: "Given to replica {other}.",
    Reason.NEXT_TURN: "The next turn of a session, {n} ms after the end of {other}.",
    Reason.WAITS_FOR_BLOCKS: "Waits for {blocks} of KV memory{behind}.",
    Reason.WAITS_FOR_STATE: "Waits for {states}, since running requests hold all{behind}.",
    Reason.WAITS_FOR_SESSIONS: "Waits, since {blocks} are kept for turns expected soon{behind}.",
    Reason.WAITS_FOR_SEQUENCE: (
        "Waits, since {requests} run, as many as may (--max-num-seqs){behind}."
    ),
    Reason.WAITS_FOR_BUDGET: (
        "Waits, since the step's {tokens} are taken (--max-num-batched-tokens){behind}."
    ),
    Reason.WAITS_FOR_PACE: "Waits, since prompts have had their {tokens} of the step{so_that}.",
    Reason.WAITS_AFTER_PREEMPTION: "Waits a step, since {requests} had to give blocks back.",
    Reason.WAITS_FOR_PROMPT: "Waits for the choice before it to compute the prompt they share.",
    Reason.WAITS_FOR_PREFIX: "Waits for {tokens} of its prompt that {other} computes.",
    Reason.WAITS_FOR_GRAMMAR: "Waits for its grammar to be compiled.",
    Reason.WAITS_FOR_DISK: "Waits for blocks of its prompt to be read from disk.",
    Reason.WAITS_FOR_PEER: "Waits for blocks of its prompt to come from another engine.",
    Reason.WAITS_FOR_SKIPPED: (
        "Waits for one ahead that was passed {times}, as often as may be{behind}."
    ),
    Reason.LATE: (
        "Lets others by: its first token would be {n} ms late, or would make others late."
    ),
    Reason.LATE_EXPECTED: "Its first token is expected {n} ms after its target.",
    Reason.COUNTS_LATER: (
        "Counts as if it had come {n} ms later, since it is expected to take long."
    ),
    Reason.LET_BY: "Lets {other} by, which is shorter (by {n} ms of the order).",
    Reason.LOADED_FROM_DISK: "Had {tokens} of its prompt read from disk.",
    Reason.LOADED_FROM_PEER: "Had {tokens} of its prompt from another engine.",
    Reason.ADMITTED: "Admitted; {tokens} of its prompt were in the prefix cache.",
    Reason.RESUMED: "Resumed; {tokens} were in the prefix cache.",
    Reason.FORKED: "Admitted; it shares {tokens} of the prompt with {other}.",
    Reason.SWAPPED_IN: "Resumed; the host had kept {tokens}.",
    Reason.PACED: "Computed in parts: prompts get {tokens} of a step{so_that}.",
    Reason.FIRST_TOKEN: "First token.",
    Reason.MISS_TOO_SHORT: "No more was cached: {tokens} fill no block.",
    Reason.MISS_DIFFERS: "No more was cached: from token {n} on it differs from what is.",
    Reason.MISS_EVICTED: "No more was cached: from token {n} on it was, but has been evicted.",
    Reason.MISS_SALT: "No more was cached: from token {n} on it is, but for others.",
    Reason.MISS_STATE: "No more was used: K and V of {tokens} are cached, no state there.",
    Reason.MISS_NEW: "No more was cached: nothing like it was seen before.",
    Reason.PINNED: "Pinned, {blocks}.",
    Reason.NOT_PINNED: "Not pinned: others were meanwhile, {blocks} too many.",
    Reason.PIN_LOST: "Not pinned: the prefix cache was reset meanwhile.",
    Reason.PREEMPTED_FOR_BLOCKS: "Preempted{for_whom}; {tokens} were thrown away.",
    Reason.PREEMPTED_FOR_URGENT: (
        "Gave its place to a more urgent request{by}; {tokens} were thrown away."
    ),
    Reason.SWAPPED_OUT: "Preempted{for_whom}; the host keeps {tokens}.",
    Reason.ENGINE_RESTARTED: "The engine was started again; {outputs} were kept.",
    Reason.STOP_TOKEN: "Ended at a stop token.",
    Reason.END_OF_SEQUENCE: "Ended by itself.",
    Reason.MAX_TOKENS: "Ended at its most tokens.",
    Reason.PROMPT_COMPUTED: "Ended with its prompt.",
    Reason.CONTEXT_END: "Ended at the end of the context.",
    Reason.ABORTED: ("Aborted: the client had gone, a stop string was found, or it was cancelled."),
    Reason.NOT_FINITE: "Failed: the model's numbers were not finite.",
    Reason.STEP_FAILED: "Failed: its part of a step raised an error.",
    Reason.GRAMMAR_FAILED: (
        "Failed: its grammar could not be compiled or followed, or left no token."
    ),
    Reason.DEADLINE_EXCEEDED: "Ended: its time limit had passed.",
    Reason.QUARANTINED: "Ended: it crashes engines.",
    Reason.DEADLINE_HOPELESS: "Refused: it takes longer than there is time.",
    Reason.FORK_DIFFERS: "Refused: its prompt is not the one it should share.",
    Reason.PROMPT_EMPTY: "Refused: its prompt is empty.",
    Reason.CONTEXT_EXCEEDED: "Refused: prompt and output exceed the context.",
    Reason.NEVER_FITS: "Refused: it needs more blocks than there are.",
    Reason.PINS_FULL: "Refused: more blocks would be pinned than may be.",
    Reason.QUEUE_FULL: "Refused: the queue was full.",
    Reason.OVER_SHARE: "Refused: the queue was full, and its key had more than its share of it.",
    Reason.DUPLICATE_ID: "Refused: its id is in use.",
}
"""The sentence of each reason. `{n}` is the number alone, the plural of a noun the number with that
noun, `{other}` the other request; the rest are parts of a sentence that name it, empty without."""


def sentence(event: Event, target_itl_ms: float | None = None) -> str:
    """Return an event in words. `target_itl_ms` is the target of the other request, None where it
    has none or it is not known."""
    number, other = event.number, event.other
    return SENTENCES[event.reason].format(
        n=f"{number:,}",
        tokens=_counted(number, "token"),
        blocks=_counted(number, "block"),
        requests=_counted(number, "request"),
        outputs=_counted(number, "output token"),
        times=_counted(number, "time"),
        states=_counted(number, "state"),
        place=f"behind {_counted(number, 'request')}" if number else "as the first",
        other=other or "another request",
        by=f", {other}" if other else "",
        behind=f", behind {other}" if other else "",
        for_whom=f" for {other}" if other else "",
        so_that=so_that(other, target_itl_ms),
    )


def so_that(other: str, target_itl_ms: float | None) -> str:
    """Return why prompts get only a part of a step: `other` has a target, or all outputs have their
    pace."""
    if not other:
        return ", so that running outputs keep their pace"
    of = "" if target_itl_ms is None else f" of {target_itl_ms:,g} ms"
    return f", so that {other} keeps its target{of}"


def pace_sentence(num_tokens: int | None, other: str, target_itl_ms: float | None = None) -> str:
    """Return how much of a step prompts get, None for all that it has room for, and why. `other` is
    the request whose target that is, empty where none has one."""
    if num_tokens is None:
        return "Prompts may have all the room of a step."
    return f"Prompts get {_counted(num_tokens, 'token')} of a step{so_that(other, target_itl_ms)}."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
