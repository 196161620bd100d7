"""`POST /v1/rerank` and `POST /v1/score`: a score for each pair of texts, in the right order."""

from array import array

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.request import Pooling, PoolingKind
from quire.server.apis.scoring.inputs import check_scoring, read_pairs, rerank_pairs, score_pairs
from quire.server.apis.scoring.protocol import RerankRequest, ScoreRequest
from quire.server.apis.scoring.writer import sigmoid
from quire.server.errors import RequestError
from quire.server.models.input_context import InputContext, InputLimits, TokenizerSource
from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.scripted_engine import FACTS, vector_of
from tests.server.served import BUNDLED, MODEL, Served

QUERY, DOCUMENTS = "Who is the king?", ["my lord", "the king is dead", "a crown"]


def rerank(served: Served, path: str = "/v1/rerank", **fields: object) -> httpx.Response:
    return served.client.post(path, json={"query": QUERY, "documents": DOCUMENTS} | fields)


def scores_of(served: Served) -> list[float]:
    numbers = [array("f", vector_of(each))[0] for each in served.engine.submitted]
    return [sigmoid(number) for number in numbers]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_come_best_first(served: Served, path: str) -> None:
    body = rerank(served, path, use_activation=False).raise_for_status().json()
    numbers = [array("f", vector_of(each))[0] for each in served.engine.submitted]
    order = sorted(range(3), key=lambda index: -numbers[index])
    assert [each["index"] for each in body["results"]] == order
    assert [each["relevance_score"] for each in body["results"]] == sorted(numbers, reverse=True)
    assert all("document" not in each for each in body["results"])
    num_tokens = sum(len(each.prompt_token_ids) for each in served.engine.submitted)
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def test_the_best_are_sent_with_their_texts(served: Served) -> None:
    given = [DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]]
    body = rerank(served, documents=given, top_n=2, return_documents=True).json()
    assert len(body["results"]) == 2
    for each in body["results"]:
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_pairs_are_scored_in_their_order(served: Served, path: str) -> None:
    body = served.client.post(path, json={"text_1": QUERY, "text_2": DOCUMENTS}).json()
    assert [each["score"] for each in body["data"]] == pytest.approx(scores_of(served))
    assert [each["index"] for each in body["data"]] == [0, 1, 2]


def test_the_engine_is_asked_for_the_first_token_of_both_texts(
    served: Served, tokenizer: TextTokenizer
) -> None:
    rerank(served, documents=["my lord"]).raise_for_status()
    (new,) = served.engine.submitted
    pair = tokenizer.encode_pair(QUERY, "my lord")
    assert new.prompt_token_ids == pair.token_ids
    assert new.pooling == Pooling(PoolingKind.CLS, None, False, pair.type_starts)
    assert new.stopping.max_tokens == 0


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        ("/v1/rerank", {"documents": ["x"]}, "query", "Missing"),
        ("/v1/rerank", {"query": "x"}, "documents", "Missing"),
        ("/v1/rerank", {"query": "", "documents": ["x"]}, "query", "1 character"),
        ("/v1/rerank", {"query": "x", "documents": []}, "documents", "1 item"),
        ("/v1/rerank", {"query": "x", "documents": ["y"] * 1025}, "documents", "1024"),
        ("/v1/rerank", {"query": "x", "documents": ["y"], "top_n": 0}, "top_n", "1"),
        ("/v1/rerank", {"query": "x", "documents": ["y"], "rank_fields": ["a"]}, "rank_fields", ""),
        (
            "/v1/rerank",
            {"query": "x", "documents": ["y", "the king " * 200]},
            "documents[1]",
            "256 tokens",
        ),
        (
            "/v1/rerank",
            {"query": "the king " * 20, "documents": ["y"], "truncate_prompt_tokens": 5},
            "truncate_prompt_tokens",
            "leaves nothing of 'documents[0]'",
        ),
        ("/v1/score", {"text_1": ["x"] * 2, "text_2": ["y"] * 3}, "text_2", "2 texts"),
        ("/v1/score", {"text_1": "x", "text_2": []}, "text_2", "1 item"),
        ("/v1/score", {"text_1": "x", "text_2": "y", "priority": 1}, "priority", "policy"),
        ("/v1/score", {"text_1": "x", "text_2": "y", "model": "gpt"}, "model", "not exist"),
    ],
)
def test_what_is_wrong_is_named(
    served: Served, path: str, fields: dict[str, object], param: str, said: str
) -> None:
    reply = served.client.post(path, json=fields)
    error = reply.json()["error"]
    assert reply.status_code == (404 if param == "model" else 400), error
    assert error["param"] == param
    assert said in error["message"]
    assert served.engine.submitted == []


def test_a_model_that_is_no_cross_encoder_says_so(tokenizer: TextTokenizer) -> None:
    facts = msgspec.structs.replace(FACTS, scores=None)
    context = InputContext(
        InputLimits(facts, 1024, (MODEL,)), tokenizer, TokenizerSource(BUNDLED, None)
    )
    request = RerankRequest.model_validate({"query": "x", "documents": ["y"]})
    with pytest.raises(RequestError, match="no cross-encoder"):
        check_scoring(request, context)


@given(st.integers(8, 40), st.integers(1, 30))
@cases(50)
def test_the_second_text_is_cut_and_no_special_token(
    tokenizer: TextTokenizer, most: int, num_words: int
) -> None:
    context = InputContext(
        InputLimits(FACTS, 1024, (MODEL,)), tokenizer, TokenizerSource(BUNDLED, None)
    )
    request = RerankRequest.model_validate(
        {"query": "x", "documents": ["king " * num_words], "truncate_prompt_tokens": most}
    )
    (prompt,) = read_pairs(rerank_pairs(request), request, context)
    whole = tokenizer.encode_pair("x", "king " * num_words)
    assert len(prompt.token_ids) == min(most, len(whole.token_ids))
    num_after = len(whole.token_ids) - whole.second[1]
    kept = len(prompt.token_ids) - num_after
    assert prompt.token_ids == whole.token_ids[:kept] + whole.token_ids[whole.second[1] :]


def test_one_text_goes_with_all_of_the_other() -> None:
    for first, second in (("a", ["b", "c"]), (["b", "c"], "a"), (["a", "b"], ["c", "d"])):
        request = ScoreRequest.model_validate({"text_1": first, "text_2": second})
        pairs = [(pair.first, pair.second) for pair in score_pairs(request)]
        firsts = [first] * 2 if isinstance(first, str) else first
        seconds = [second] * 2 if isinstance(second, str) else second
        assert pairs == list(zip(firsts, seconds, strict=True))


@given(st.floats(allow_nan=False))
def test_a_sigmoid_is_a_share_of_any_number(number: float) -> None:
    assert 0 <= sigmoid(number) <= 1
    assert sigmoid(number) + sigmoid(-number) == pytest.approx(1)
