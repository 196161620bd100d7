"""A plan decides what is said: to the letter, the answer of the mark that stands last."""

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.e2e.clients.clients import FOLDER
from tests.e2e.clients.plan import ELSE, Answer, Plan, read_plan
from tests.server.grammars.outputs import Outputs

BUNDLED = Path(str(files("quire.models") / "bundled"))
MARKS = ("Say one.", "Say two.", "Say three.")
ANSWERS = (Answer(ELSE, "none"), *(Answer(mark, f"after {mark}") for mark in MARKS))


@pytest.fixture(scope="module")
def outputs() -> Iterator[Outputs]:
    made = Outputs(BUNDLED, "<|end|>")
    yield made
    made.close()


def request(outputs: Outputs, prompt: str) -> NewRequest:
    token_ids = outputs.text.encode(prompt, add_special_tokens=False)
    return NewRequest("a", token_ids, Sampling(), Stopping(50))


@given(st.lists(st.sampled_from(MARKS) | st.text(" .Sayonetw", max_size=8)))
def test_the_last_mark_of_a_prompt_decides(outputs: Outputs, parts: Sequence[str]) -> None:
    prompt = "".join(parts)
    planned = Plan(ANSWERS, outputs.text).planned(request(outputs, prompt))
    last = max(MARKS, key=prompt.rfind)
    assert planned.mark == (last if last in prompt else ELSE)
    assert planned.request.prompt_token_ids == request(outputs, prompt).prompt_token_ids


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_nothing_but_the_planned_text_is_said(outputs: Outputs, says: str) -> None:
    drawn = outputs.draw(Answer("", says).grammar(), seed=0, is_forced=True)
    assert drawn is not None and drawn.has_ended
    assert outputs.text.decode(drawn.token_ids, skip_special_tokens=False) == says


def test_an_answer_that_goes_on_may_not_end_before_its_room_does(outputs: Outputs) -> None:
    plan = Plan((Answer(ELSE, "and on ", goes_on=True),), outputs.text)
    planned = plan.planned(request(outputs, "Count."))
    assert planned.request.stopping == Stopping(50, min_tokens=50)
    again = outputs.text.encode("and on and on", add_special_tokens=False)
    assert outputs.takes(planned.request.sampling.grammar, again)


def test_the_plan_of_the_agents_is_one(outputs: Outputs) -> None:
    plan = read_plan(FOLDER / "plan.json", outputs.text)
    assert plan.planned(request(outputs, "")).mark == ELSE
