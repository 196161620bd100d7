"""Bounds of what a replay may take of memory, whatever a file says: of counts in it, tokens and
digests are made, and a few bytes can ask for billions.
"""

from collections.abc import Iterable, Iterator, Sequence

from quire.engine.recording.flight_file import FlightFileError
from quire.engine.recording.inputs import (
    BlocksImported,
    Input,
    RequestAdded,
    RequestResumed,
    StepUpdated,
)
from quire.engine.recording.replayed_scheduler import SegmentStart
from quire.engine.recording.ring import SLOT_BYTES

MAX_TOKENS = 1 << 24
"""No prompt, output or input of a true file has as many tokens or digests."""
MAX_HELD_TOKENS = 1 << 27
"""No requests of a true file have as many tokens together."""
MAX_DEPTH = 1 << 20
"""No prompt of a true file has as many blocks."""
MAX_BLOCK_SIZE = 1 << 14


def check_start(start: SegmentStart) -> int:
    """Return how many tokens the requests have that a segment begins with. Raises FlightFileError
    if its counts are beyond bounds."""
    shape, snapshot = start.cache, start.snapshot
    _hold("blocks", shape.num_blocks, len(snapshot.cache.pool.num_refs))
    states = snapshot.cache.states
    _hold("states", shape.num_states, 0 if states is None else len(states.num_refs))
    _hold("states of the host", shape.num_host_states, SLOT_BYTES)
    _hold("blocks of the host", shape.num_host_blocks, SLOT_BYTES)
    _hold("tokens in a block", shape.block_size, MAX_BLOCK_SIZE)
    _hold("blocks before another", max(snapshot.cache.depths, default=0), MAX_DEPTH)
    num_held = 0
    for each in snapshot.requests:
        sizes = each.num_tokens, each.arrival.num_prompt_tokens, *_lengths(each.table.chain)
        num_held += _hold(f"tokens of request {each.arrival.id}", _sum(sizes), MAX_TOKENS)
    return _hold("tokens of all requests", num_held, MAX_HELD_TOKENS)


def check_input(record: Input) -> int:
    """Return how many tokens or digests an input brings. Raises FlightFileError if they are beyond
    bounds."""
    return _hold("tokens of an input", _sum(_sizes(record)), MAX_TOKENS)


def check_held(num_held: int) -> None:
    """Raise FlightFileError if the requests have more tokens together than a replay holds."""
    _hold("tokens of all requests", num_held, MAX_HELD_TOKENS)


def _sizes(record: Input) -> Iterator[int]:
    yield from _lengths(record.answers)
    if isinstance(record, RequestAdded | RequestResumed):
        yield record.arrival.num_prompt_tokens
    if isinstance(record, RequestResumed):
        yield record.num_output_tokens
    elif isinstance(record, BlocksImported):
        yield from _lengths(record.chain)
    elif isinstance(record, StepUpdated):
        for counts in (record.forced, record.scored, record.ended, record.stopped):
            yield from counts.values()


def _lengths(runs: Sequence[int]) -> Sequence[int]:
    return runs[1::2]


def _sum(sizes: Iterable[int]) -> int:
    return sum(max(each, 0) for each in sizes)


def _hold(what: str, number: int, most: int) -> int:
    if number > most:
        raise FlightFileError(f"the file says {number} {what}: a replay takes {most} at most")
    return number
