"""A real server under kills, hangs, crashes and everything at once, small: `make chaos` has it
large, `make soak` for hours, `make long` as it is here. Nothing here looks at a clock."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.chaos.checkpoints import FaultyCheckpoint, save_faulty
from tests.chaos.kills import Outcome, crashed, killed
from tests.chaos.mix import COMPLETION_WAYS, asks
from tests.chaos.poison import poisoned
from tests.chaos.scenarios import ALWAYS, Scale, all_at_once, kills
from tests.chaos.subject import Subject, subject

STORIES = Path(__file__).parents[3] / "shared/models/stories260K"
SMALL = Scale(
    seed=25,
    num_requests=64,
    num_hits=3,
    num_stops=1,
    seconds=20,
    num_clients=12,
    calm_s=1.5,
    max_tokens=200,
)
pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


def breaches(outcomes: Iterable[Outcome]) -> list[str]:
    return [f"{each.name}: {breach}" for each in outcomes for breach in each.breaches]


def test_answers_are_those_of_an_undisturbed_run_however_often_the_engine_ends() -> None:
    outcomes = list(kills(SMALL))
    assert breaches(outcomes) == []
    assert [each.num_answers for each in outcomes] == [64, 64]
    assert [each.num_disturbances for each in outcomes] == [3, 1]
    assert all(each.num_comments > 0 for each in outcomes)


def test_another_model_goes_on_too() -> None:
    if not STORIES.is_dir():
        pytest.skip("shared/models/stories260K is not there")
    draw = random.Random(25)
    these = asks(32, draw, ways=COMPLETION_WAYS, max_tokens=150)
    with subject(str(STORIES), *ALWAYS, weights=STORIES) as server:
        outcome = killed(server, these, 2, draw)
    assert breaches([outcome]) == []
    assert (outcome.num_answers, outcome.num_disturbances) == (32, 2)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Subject, FaultyCheckpoint]]:
    checkpoint = save_faulty(tmp_path_factory.mktemp("faulty"))
    with subject(*ALWAYS, *checkpoint.flags) as server:
        yield server, checkpoint


def test_a_crash_in_a_certain_step_changes_no_answer(
    faulty: tuple[Subject, FaultyCheckpoint],
) -> None:
    outcome = crashed(*faulty, asks(48, random.Random(25)), "abort", [40, 60])
    assert breaches([outcome]) == []
    assert (outcome.num_answers, outcome.num_disturbances) == (48, 2)


@pytest.mark.parametrize("name", ["nan", "raise", "memory", "abort"])
def test_a_request_that_breaks_the_engine_fails_alone(
    name: str, faulty: tuple[Subject, FaultyCheckpoint]
) -> None:
    outcome = poisoned(faulty[0], name, random.Random(25))
    assert breaches([outcome]) == []
    assert outcome.num_answers == 20


def test_everything_at_once_keeps_the_accounts() -> None:
    (outcome,) = all_at_once(SMALL)
    assert breaches([outcome]) == []
    assert outcome.num_answers > 0
    assert outcome.num_disturbances > 0
