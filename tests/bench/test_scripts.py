"""Scripts have prompts of messages and earlier outputs, and a server is sent just these."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from bench.script_clients import play_script
from bench.scripts import (
    Message,
    Part,
    Said,
    Script,
    ScriptedTurn,
    first_conversations,
    mooncake,
    resolved,
)
from bench.snapshot_traces import agents, documents, examples, tenants
from bench.trace_clients import Asked
from hypothesis import given
from hypothesis import strategies as st

from quire.workbench.bench.exchange import parse_address
from tests.server.served import MODEL, Served, plain_config, serving

ALL = (
    tenants("20 tenants", keeps_reasoning=True),
    tenants("20 tenants, no reasoning", keeps_reasoning=False),
    agents("agents"),
    documents("documents"),
    examples("examples"),
)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(plain_config()) as running:
        yield running


@st.composite
def small_scripts(draw: st.DrawFn) -> Script:
    """Scripts of some conversations whose prompts have any parts of what came before."""
    turns: list[ScriptedTurn] = []
    for number in range(draw(st.integers(1, 6))):
        conversation = draw(st.integers(0, 2))
        earlier = [each for each in turns if each.conversation == conversation]
        said = [Said(each.number, draw(st.integers(0, 9))) for each in earlier]
        known: list[Part] = [*said, *(Message(content, content + 1) for content in range(5))]
        chosen = draw(st.lists(st.sampled_from(known), max_size=4))
        parts: tuple[Part, ...] = (Message(100 + number, 2), *chosen)
        turns.append(ScriptedTurn(number, conversation, parts, draw(st.integers(1, 6))))
    return Script("small", turns)


def prompts_of(script: Script, outputs: Sequence[Sequence[int]]) -> list[list[object]]:
    """Return the prompts, a message's tokens as its content and their places."""
    return [
        [
            token
            for part in turn.parts
            for token in (
                outputs[part.number][part.num_left_out :]
                if isinstance(part, Said)
                else [(part.content, place) for place in range(part.num_tokens)]
            )
        ]
        for turn in script.turns
    ]


@given(small_scripts())
def test_equal_contents_are_equal_tokens_and_no_others_are(script: Script) -> None:
    turns = resolved(script).turns
    named: dict[int, object] = {}
    for turn, prompt in zip(turns, prompts_of(script, [t.output for t in turns]), strict=True):
        assert len(turn.prompt) == len(prompt)
        for token, name in zip(turn.prompt, prompt, strict=True):
            assert named.setdefault(token, name) == name
    assert len({*named.values()}) == len(named)
    assert [len(turn.output) for turn in turns] == [turn.num_outputs for turn in script.turns]


@pytest.mark.parametrize("script", ALL, ids=lambda script: script.name)
def test_what_is_said_comes_from_the_conversation_itself_and_from_before(script: Script) -> None:
    known: dict[int, int] = {}
    for turn in script.turns:
        for part in turn.parts:
            if isinstance(part, Said):
                assert known[part.number] == turn.conversation
        known[turn.number] = turn.conversation
    assert len(known) == len(script.turns)
    some = Script(script.name, script.turns[:60])
    assert resolved(some.shortened(8)) == resolved(some.shortened(2).shortened(4))


def test_a_made_trace_is_the_same_each_time() -> None:
    assert agents("a") == agents("a") and documents("d") == documents("d")
    assert examples("e") == examples("e") != examples("e", seed=9)


def test_agents_go_on_from_one_history_several_times_and_sum_it_up() -> None:
    turns = sorted(agents("a").turns, key=lambda turn: (turn.conversation, turn.number))
    num_parted = sum(
        before.parts[:-1] == after.parts for before, after in zip(turns, turns[1:], strict=False)
    )
    assert num_parted > 10
    assert any(turn.num_outputs == 800 for turn in turns)


def test_mooncakes_blocks_are_messages_and_the_first_conversations_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [(1030, [0, 1, 2]), (1536, [0, 3, 4]), (600, [0, 5]), (1200, [0, 3, 6])]
    path.write_bytes(
        b"\n".join(
            msgspec.json.encode(
                {"timestamp": at, "input_length": n, "output_length": 70, "hash_ids": ids}
            )
            for at, (n, ids) in enumerate(lines)
        )
    )
    script = mooncake("m", path, 4).shortened(32)
    assert script.turns[0].parts == (Message(0, 16), Message(1, 16), Message(-1, 1))
    assert script.turns[1].parts[:3] == (Message(0, 16), Message(3, 16), Message(4, 16))
    assert {turn.num_outputs for turn in script.turns} == {2} and script.scale == 32
    first = first_conversations(script, 2).turns
    assert [(turn.number, turn.conversation) for turn in first] == [(0, 0), (1, 1), (3, 1)]


def test_a_server_is_sent_its_own_outputs(served: Served) -> None:
    """The engine repeats prompts."""
    script = Script(
        "small",
        [
            ScriptedTurn(0, 0, (Message(0, 20), Message(1, 5)), 7),
            ScriptedTurn(1, 1, (Message(0, 20), Message(2, 4)), 3),
            ScriptedTurn(2, 0, (Message(0, 20), Message(1, 5), Said(0, 2), Message(3, 1)), 2),
        ],
    )
    asked = Asked(parse_address(served.url), MODEL, 2048)
    figures = play_script(script, asked, num_clients=2)
    sent = {len(each.prompt_token_ids): each.prompt_token_ids for each in served.engine.submitted}
    assert sorted(sent) == [24, 25, 31] and figures.num_prompt_tokens == 80
    assert sent[25][:20] == sent[24][:20] == sent[31][:20]
    assert sent[31][:25] == sent[25] and sent[31][25:30] == sent[25][2:7]


def test_a_request_that_fails_ends_it(served: Served) -> None:
    asked = Asked(parse_address(served.url), "no-such-model", 2048)
    script = Script("small", [ScriptedTurn(0, 0, (Message(0, 20),), 7)])
    with pytest.raises(SystemExit, match="request 0 failed with 404"):
        play_script(script, asked, num_clients=1)
