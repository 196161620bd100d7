"""`allowed_token_ids` and `bad_words` on their way to the engine."""

import pytest

from quire.server.http.endpoints import CHAT, COMPLETIONS
from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_errors import error_of
from tests.server.base_bodies import BASE
from tests.server.scripted_engine import FACTS
from tests.server.served import Served


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
def test_bad_words_are_tokens_with_and_without_a_blank(
    served: Served, tokenizer: TextTokenizer, endpoint: str
) -> None:
    words = ["king", " king", "wherefore art thou"]
    reply = served.client.post(endpoint, json={**BASE[endpoint], "n": 2, "bad_words": words})
    assert reply.status_code == 200
    expected = {
        tokenizer.encode(blank + word, add_special_tokens=False)
        for word in ("king", "wherefore art thou")
        for blank in ("", " ")
    }
    for request in served.engine.submitted:
        sequences = request.sampling.bad_words
        assert set(sequences) == expected and len(sequences) == len(expected)
    assert any(len(sequence) > 1 for sequence in expected)


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
def test_allowed_token_ids_reach_the_engine(served: Served, endpoint: str) -> None:
    reply = served.client.post(endpoint, json={**BASE[endpoint], "allowed_token_ids": [5, 1]})
    assert reply.status_code == 200
    (request,) = served.engine.submitted
    assert request.sampling.allowed_token_ids == (5, 1)


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": [5], "bad_words": ["x"]}, "bad_words"),
        ({"allowed_token_ids": [5], "guided_regex": "a"}, "allowed_token_ids"),
        ({"bad_words": ["x"], "response_format": {"type": "json_object"}}, "bad_words"),
        (
            {"allowed_token_ids": list(FACTS.eos_token_ids), "min_tokens": 1},
            "allowed_token_ids",
        ),
        (
            {
                "allowed_token_ids": [7],
                "stop_token_ids": [7],
                "ignore_eos": True,
                "min_tokens": 1,
            },
            "allowed_token_ids",
        ),
    ],
)
def test_what_may_leave_no_token_is_refused(
    served: Served, endpoint: str, fields: dict[str, object], param: str
) -> None:
    reply = served.client.post(endpoint, json={**BASE[endpoint], "max_tokens": 4, **fields})
    assert reply.status_code == 400
    assert error_of(reply)["param"] == param
    assert served.engine.submitted == []


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
def test_no_bad_words_are_as_none(served: Served, endpoint: str) -> None:
    fields: dict[str, object] = {"bad_words": [], "allowed_token_ids": None, "guided_regex": "a"}
    assert served.client.post(endpoint, json={**BASE[endpoint], **fields}).status_code == 200
