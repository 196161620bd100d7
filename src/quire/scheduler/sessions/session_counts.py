"""Counts of sessions: their turns, and what became of what was kept for them."""

from dataclasses import dataclass


@dataclass(slots=True)
class SessionCounts:
    """Counts since the start.

    num_turns: requests that were known as the next turn of a session.
    num_returned: of them, those for which blocks were kept.
    num_expired: prefixes that were kept for a turn which did not come in time.
    num_crowded_out: prefixes that were kept no longer since their tenant keeps more than its share.
    num_held: new sessions that waited rather than take blocks that were kept.
    """

    num_turns: int = 0
    num_returned: int = 0
    num_expired: int = 0
    num_crowded_out: int = 0
    num_held: int = 0
