"""The eyes of chaos: each breach that it looks for is seen where it is planted."""

import json
from array import array
from copy import deepcopy

import pytest
import torch

from tests.chaos.answers import Answer, Choice, Score, answer_of, differences, is_beginning
from tests.chaos.injectors import outages
from tests.chaos.metrics import Tally, gone_back, metrics_of, not_idle, unbalanced
from tests.chaos.mix import COMPLETIONS, Ask
from tests.chaos.soak import Sample, growths
from tests.chaos.ties import is_near, parting
from tests.chaos.visits import Visit, Wish, ended
from tests.chaos.wire import Conduct, Pulse, Reply

ASK = Ask("seeded", COMPLETIONS, {"seed": 1, "stream": True})
CHUNKS = [("a", 10, None), ("b", 11, None), ("c", 12, "length")]
IDLE = """
quire:num_requests_running{model_name="m"} 0
quire:num_requests_waiting{model_name="m"} 0
quire:batch_lines_running{model_name="m"} 0
quire:input_bodies_waiting{lane="short"} 0
quire:http_half_read_bytes{model_name="m"} 0
quire:cache_config_info{num_gpu_blocks="11"} 1
quire:kv_blocks{state="free"} 7
quire:kv_blocks{state="cached"} 3
quire:kv_blocks{state="active"} 0
quire:kv_blocks{state="swapped"} 0
quire:request_success_total{finished_reason="stop"} 5
quire:engine_process_cpu_seconds_total 7
http_requests_total{status="2xx"} 5
"""


def streamed(chunks: list[tuple[str, int, str | None]], end: str = "[DONE]") -> Answer:
    """The answer to a stream of these chunks: text, token, reason to finish."""
    events = [
        json.dumps(
            {"choices": [{"index": 0, "text": text, "token_ids": [token], "finish_reason": reason}]}
        )
        for text, token, reason in chunks
    ]
    body = "".join(f"data: {each}\n\n" for each in [*events, end])
    return answer_of(Reply(ASK, 200, body=b": waits\n\n" + body.encode(), is_whole=True))


def test_the_same_stream_is_the_same() -> None:
    answer = streamed(CHUNKS)
    assert answer.is_right
    assert differences(answer, streamed(CHUNKS)) == []


@pytest.mark.parametrize(
    "chunks",
    [
        [CHUNKS[0], *CHUNKS],  # a token comes twice
        [CHUNKS[0], CHUNKS[2]],  # one is missing
        [CHUNKS[0], ("b", 13, None), CHUNKS[2]],  # another token with this text
        [*CHUNKS, ("", 12, "length")],  # it ends twice
        [*CHUNKS[:2], ("c", 12, "stop")],
        [*CHUNKS[:2], ("c", 12, None)],  # it never ends
    ],
)
def test_a_stream_with_a_fault_differs(chunks: list[tuple[str, int, str | None]]) -> None:
    assert differences(streamed(CHUNKS), streamed(chunks)) != []


def test_a_stream_that_breaks_off_is_told() -> None:
    calm, cut = streamed(CHUNKS), streamed(CHUNKS[:2], end="{}")
    assert cut.fault == "the stream has no end"
    assert is_beginning(calm, cut)
    assert not is_beginning(calm, streamed([CHUNKS[1]]))


def test_an_event_that_is_an_error_is_told() -> None:
    broken = json.dumps({"error": {"message": "gone", "code": "engine_down"}})
    body = f"data: {broken}\n\ndata: [DONE]\n\n".encode()
    answer = answer_of(Reply(ASK, 200, body=body, is_whole=True))
    assert answer.error == "engine_down: gone"
    assert not answer.is_right


def test_scores_differ_by_more_than_rounding() -> None:
    calm = Answer(200, {0: Choice(scores=[Score("a", -1.0, (("a", -1.0),))], num_ends=1)})
    near, far = deepcopy(calm), deepcopy(calm)
    near.choices[0].scores = [Score("a", -1.000002, (("a", -1.000002),))]
    far.choices[0].scores = [Score("a", -1.1, (("a", -1.1),))]
    assert differences(calm, near) == []
    assert len(differences(calm, far)) == 1


def test_a_number_on_a_border_is_near_both_tokens() -> None:
    probabilities = torch.tensor([0.25, 0.0, 0.25, 0.5], dtype=torch.float64)
    near = [token for token in range(4) if is_near(probabilities, token, 0.5000001)]
    assert near == [2, 3]
    assert [token for token in range(4) if is_near(probabilities, token, 0.4)] == [2]
    assert parting([1, 2, 3], [1, 2, 4]) == 2
    assert parting([1, 2, 3], [1, 2]) is None


def test_idle_is_idle() -> None:
    now = metrics_of(IDLE)
    assert not_idle(now) == []
    assert gone_back(now, now) == []


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('quire:num_requests_running{model_name="m"} 0', "quire:num_requests_running{} 1"),
        ('quire:kv_blocks{state="free"} 7', 'quire:kv_blocks{state="free"} 6'),
        ('quire:kv_blocks{state="active"} 0', 'quire:kv_blocks{state="active"} 1'),
    ],
)
def test_what_is_held_is_told(was: str, becomes: str) -> None:
    assert len(not_idle(metrics_of(IDLE.replace(was, becomes)))) == 1


def test_a_counter_that_goes_back_is_told_but_for_a_process() -> None:
    before = metrics_of(IDLE)
    less = IDLE.replace('"stop"} 5', '"stop"} 4').replace("cpu_seconds_total 7", "x 0")
    assert len(gone_back(before, metrics_of(less))) == 1
    gone = IDLE.replace('http_requests_total{status="2xx"} 5', "")
    assert len(gone_back(before, metrics_of(gone))) == 1


@pytest.mark.parametrize(
    ("tally", "num_told"),
    [
        (Tally(2, 0, 3, 3), 0),
        (Tally(1, 1, 3, 4), 0),
        (Tally(1, 0, 3, 3), 1),  # one more was counted than was sent
        (Tally(2, 0, 4, 4), 1),  # a request has not ended
        (Tally(2, 0, 2, 2), 1),  # one has ended twice
    ],
)
def test_accounts_that_are_not_even_are_told(tally: Tally, num_told: int) -> None:
    after = IDLE.replace('"2xx"} 5', '"2xx"} 7').replace('"stop"} 5', '"stop"} 8')
    assert len(unbalanced(metrics_of(IDLE), metrics_of(after), tally)) == num_told


def test_a_time_without_service_ends_with_its_silence() -> None:
    beats = [0.5, 0.9, 1.02, 1.03, 3.0, 3.1, 3.2, 7.5, 7.6]
    assert outages([1.0, 3.25], Pulse(array("d", beats))) == [2.0, 4.25]
    assert outages([1.0, 1.01], Pulse(array("d", beats))) == pytest.approx([2.0, 1.99])


@pytest.mark.parametrize(
    ("wish", "answer", "said"),
    [
        (Wish.NONE, streamed(CHUNKS), "as undisturbed"),
        (Wish.NONE, streamed([*CHUNKS[:1], ("b", 11, "abort")]), "wrong"),
        (Wish.CANCEL, streamed([*CHUNKS[:1], ("b", 11, "abort")]), "cancelled"),
        (Wish.CANCEL, streamed([*CHUNKS[:1], ("x", 15, "abort")]), "wrong text"),
        (Wish.DEADLINE, Answer(504, error="deadline_exceeded: late"), "too late"),
        (Wish.NONE, Answer(503, error="engine_down: gone"), "wrong"),
    ],
)
def test_the_end_of_a_visit_is_judged(wish: Wish, answer: Answer, said: str) -> None:
    visit = Visit(ASK, streamed(CHUNKS), Conduct.PLAIN, wish)
    assert ended(visit, answer, may_be_refused=False).partition(":")[0] == said


@pytest.mark.parametrize(("late_mib", "is_flat"), [(104.0, True), (106.0, False)])
def test_memory_that_grows_is_told(late_mib: float, is_flat: bool) -> None:
    samples = [
        Sample(at, late_mib if at > 80 else 100.0, 30, 400.0, 4, 0.0) for at in range(0, 101, 5)
    ]
    assert all(each.is_flat for each in growths(samples)) is is_flat
