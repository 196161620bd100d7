"""The invariants where requests are turns of sessions, for which blocks are kept."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.engine.invariants import COMMON, recurrent_shapes, shapes
from tests.engine.sessions.conversations import (
    Conversation,
    Load,
    NextTurn,
    agents,
    check_load,
    keeping_shapes,
    loads,
)
from tests.engine.toy_engine import Arrival, Shape


@given(keeping_shapes(shapes()), st.one_of(loads(), agents()))
def test_same_text_alone_or_as_a_turn(shape: Shape, load: Load) -> None:
    check_load(shape, load)


@given(keeping_shapes(recurrent_shapes()), st.one_of(loads(), agents()))
def test_same_text_with_recurrent_layers(shape: Shape, load: Load) -> None:
    check_load(shape, load)


def test_a_snapshot_of_states_is_kept_and_let_go_where_there_are_no_blocks() -> None:
    """A model whose layers are all recurrent keeps states alone: the second of its tenant keeps one
    when that of the first is let go."""
    shape = Shape(2, 20, 4, 24, True, 0.0, False, layers=(None,), num_states=8)
    found = []
    for number in range(2):
        new = NewRequest(
            f"r{number}",
            (number, *COMMON[:12]),
            Sampling(temperature=0.0),
            Stopping(4),
            retention_s=4.0 + 30.0 * number,
        )
        follows = replace(new, prompt_token_ids=(1, 2))
        found.append(Conversation(Arrival(new, 0), (NextTurn(follows, 20.0, calls_tools=True),)))
    stats = check_load(shape, Load(tuple(found))).scheduler.stats
    assert stats.num_turns == 2
