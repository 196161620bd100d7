"""What a client is told that the scheduler does not take, and when to come again."""

import pytest

from quire.scheduler.reasons import Reason
from tests.server.apis.openai.test_errors import error_of
from tests.server.served import Served


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (Reason.QUEUE_FULL, 503, "server_overloaded"),
        (Reason.OVER_SHARE, 429, "rate_limit_exceeded"),
        (Reason.NEVER_FITS, 400, "never_fits"),
        (Reason.DEADLINE_HOPELESS, 504, "deadline_exceeded"),
        (Reason.CONTEXT_EXCEEDED, 400, "context_length_exceeded"),
    ],
)
def test_refusals_of_the_scheduler(served: Served, reason: Reason, status: int, code: str) -> None:
    served.engine.refuses = reason
    for n in (1, 3):
        reply = served.complete(prompt="x", n=n)
        assert reply.status_code == status
        assert error_of(reply)["code"] == code
        assert ("retry-after" in reply.headers) == (status in (429, 503))


@pytest.mark.parametrize(("wait_s", "told"), [(None, "2"), (0.1, "1"), (39.2, "40"), (1e9, "600")])
def test_when_to_come_again_is_what_the_line_takes(
    served: Served, wait_s: float | None, told: str
) -> None:
    served.engine.refuses, served.engine.wait_s = Reason.QUEUE_FULL, wait_s
    reply = served.complete(prompt="x")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, told)


def test_echoed_prompts_with_too_many_log_probabilities_are_refused(served: Served) -> None:
    fields = {"prompt": [[5] * 200] * 8, "max_tokens": 0, "echo": True, "logprobs": 20}
    reply = served.complete(**fields, n=128)
    assert reply.status_code == 400
    assert error_of(reply)["param"] == "logprobs"
    assert "4300800 log probabilities, more than the 4194304" in str(error_of(reply)["message"])
    assert not served.engine.submitted


def test_rejections_are_counted(served: Served) -> None:
    line = 'vllm:admission_rejections_total{model_name="test-model",reason="max_num_queued_reqs"}'
    before = served.metric(line)
    served.engine.refuses = Reason.QUEUE_FULL
    served.complete(prompt="x")
    assert served.metric(line) == before + 1
