"""`/v1/completions`, whole answers: forms of prompts, ends of outputs, echo, log probabilities."""

import json

import msgspec
import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.scripted_engine import FACTS, logprobs_of
from tests.server.served import MODEL, Served


def ids_of(tokenizer: TextTokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def test_answer_has_openai_shape(served: Served) -> None:
    body = served.complete(model=MODEL, prompt="To be", max_tokens=2).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == MODEL
    (choice,) = body["choices"]
    assert choice["text"] == "To be"
    assert choice["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens"] == 3  # with the beginning of sequence
    assert body["usage"]["completion_tokens"] == 2
    assert body["usage"]["total_tokens"] == 5
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3, "cache_write_tokens": 0}
    (timing,) = body["quire"]["timings"]
    assert (timing["queue_s"], timing["prefill_s"], timing["decode_s"]) == (0.25, 0.5, 0.75)


def test_default_is_sixteen_tokens(served: Served) -> None:
    assert served.complete(prompt="go").json()["usage"]["completion_tokens"] == 16


def test_every_form_of_prompt_is_understood(served: Served, tokenizer: TextTokenizer) -> None:
    ids = ids_of(tokenizer, "the king")
    num = len(ids)
    by_text = served.complete(prompt="the king", max_tokens=num).json()
    by_texts = served.complete(prompt=["the king", "my lord"], max_tokens=num).json()
    by_ids = served.complete(prompt=ids, max_tokens=num).json()
    by_many_ids = served.complete(prompt=[ids, ids], max_tokens=num).json()
    assert by_text["choices"][0]["text"] == "the king"
    assert by_texts["choices"][0]["text"] == "the king"
    assert by_texts["choices"][1]["text"].startswith("my")
    assert by_ids["choices"][0]["text"] == "the king"
    assert [c["index"] for c in by_many_ids["choices"]] == [0, 1]
    assert served.engine.submitted[-1].prompt_token_ids == tuple(ids)


def test_plain_text_gets_one_beginning_of_sequence(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.complete(prompt="the king")
    assert tokenizer.bos_token_id is not None
    prompt = served.engine.submitted[-1].prompt_token_ids
    assert prompt.count(tokenizer.bos_token_id) == 1
    served.complete(prompt="the king", add_special_tokens=False)
    assert tokenizer.bos_token_id not in served.engine.submitted[-1].prompt_token_ids


def test_doubled_beginning_is_told(served: Served) -> None:
    reply = served.complete(prompt="<|endoftext|>the king")
    assert "beginning-of-sequence" in reply.headers["x-quire-warnings"]


def test_end_of_sequence_stops_and_is_not_shown(served: Served, tokenizer: TextTokenizer) -> None:
    ids = [*ids_of(tokenizer, "farewell"), FACTS.eos_token_ids[0], 99]
    served.engine.script = lambda request: iter(ids)
    body = served.complete(prompt="x", max_tokens=50).json()
    assert body["choices"][0]["text"] == "farewell"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] is None
    assert body["usage"]["completion_tokens"] == len(ids) - 1


def test_ignore_eos_goes_on(served: Served, tokenizer: TextTokenizer) -> None:
    ids = [*ids_of(tokenizer, "farewell"), FACTS.eos_token_ids[0]] * 3
    served.engine.script = lambda request: iter(ids)
    body = served.complete(prompt="x", max_tokens=len(ids), ignore_eos=True).json()
    assert body["choices"][0]["text"] == "farewell" * 3


@pytest.mark.parametrize("include", [False, True])
def test_stop_token_id_is_said(served: Served, tokenizer: TextTokenizer, include: bool) -> None:
    ids = ids_of(tokenizer, "one two three")
    served.engine.script = lambda request: iter(ids)
    body = served.complete(
        prompt="x", stop_token_ids=[ids[-1]], include_stop_str_in_output=include
    ).json()
    kept = tuple(ids if include else ids[:-1])
    assert body["choices"][0]["text"] == tokenizer.decode(kept, skip_special_tokens=True)
    assert body["choices"][0]["stop_reason"] == ids[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_leaves_the_account_whole(served: Served, stream: bool) -> None:
    names = (
        "quire:request_queue_time_seconds_count",
        'quire:request_success_total{engine="0",finished_reason="stop"',
    )
    before = [served.metric(name) for name in names]
    reply = served.complete(
        prompt="sweet prince", stop="eet pri", max_tokens=60, **with_usage(stream)
    )
    last = msgspec.json.decode(reply.text.rsplit("data: ", 2)[1] if stream else reply.text)
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 3, "cache_write_tokens": 0}
    assert last["quire"]["timings"][0]["queue_s"] == 0.25
    assert [served.metric(name) for name in names] == [count + 1 for count in before]


def with_usage(stream: bool) -> dict[str, object]:
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {}


def test_stop_string_over_token_boundaries(served: Served, tokenizer: TextTokenizer) -> None:
    ids = ids_of(tokenizer, "good night, sweet prince, good night")
    served.engine.script = lambda request: iter(ids * 5)
    body = served.complete(prompt="x", stop="eet pri", max_tokens=60).json()
    assert body["choices"][0]["text"] == "good night, sw"
    assert body["choices"][0]["stop_reason"] == "eet pri"
    assert served.engine.aborted == [served.engine.submitted[0].id]
    kept = served.complete(
        prompt="x", stop=["eet pri"], include_stop_str_in_output=True, max_tokens=60
    ).json()
    assert kept["choices"][0]["text"] == "good night, sweet pri"


def test_stop_string_waits_for_min_tokens(served: Served, tokenizer: TextTokenizer) -> None:
    ids = ids_of(tokenizer, "x y x y x y x y")
    served.engine.script = lambda request: iter(ids)
    body = served.complete(prompt="x", stop="y", min_tokens=4, max_tokens=8).json()
    assert body["usage"]["completion_tokens"] > 4
    assert body["choices"][0]["finish_reason"] == "stop"


def test_newer_name_of_the_limit_is_understood(served: Served) -> None:
    body = served.complete(prompt="a", max_completion_tokens=3, max_tokens=3).json()
    assert body["usage"]["completion_tokens"] == 3
    body = served.complete(prompt="a", max_completion_tokens=2).json()
    assert body["usage"]["completion_tokens"] == 2


def test_choices_have_their_own_seeds(served: Served) -> None:
    body = served.complete(prompt=["a", "b"], n=3, seed=-7, max_tokens=2).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    seeds = [request.sampling.seed for request in served.engine.submitted]
    assert seeds[:3] == seeds[3:]
    assert seeds[0] == -7
    assert len(set(seeds)) == 3
    assert body["usage"]["prompt_tokens"] == 4
    assert body["usage"]["completion_tokens"] == 12


def test_absent_seed_is_random(served: Served) -> None:
    served.complete(prompt="a")
    served.complete(prompt="a")
    first, second = (request.sampling.seed for request in served.engine.submitted)
    assert first != second


def test_echo_gives_the_prompt_back(served: Served, tokenizer: TextTokenizer) -> None:
    body = served.complete(prompt="my lord", echo=True, max_tokens=1).json()
    assert body["choices"][0]["text"].startswith("my lord")
    ids = ids_of(tokenizer, "my lord")
    body = served.complete(prompt=ids, echo=True, max_tokens=len(ids)).json()
    assert body["choices"][0]["text"] == "my lordmy lord"


def test_echo_with_logprobs_scores_the_prompt(served: Served, tokenizer: TextTokenizer) -> None:
    ids = ids_of(tokenizer, "my lord, my lord")
    body = served.complete(prompt=ids, echo=True, logprobs=2, max_tokens=2).json()
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    expected = [None] + [-id / 1000 for id in ids[1:]] + [-id / 1000 for id in ids[:2]]
    assert logprobs["token_logprobs"] == expected
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["top_logprobs"][0] is None
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)


def test_offsets_are_of_the_text_that_is_echoed(served: Served) -> None:
    """With the special tokens that a client wrote, and without those that were added."""
    for prompt, skips in (("ab<|user|>cd", True), ("ab<|user|>cd", False), ("ab", False)):
        fields = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 1}
        body = served.complete(**fields, skip_special_tokens=skips).json()
        (choice,) = body["choices"]
        logprobs = choice["logprobs"]
        shown = [
            (token, offset)
            for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True)
            if not token.startswith("<|") or token in prompt
        ]
        assert len(shown) >= 2
        for token, offset in shown:
            assert choice["text"][offset:].startswith(token)


def test_echo_alone_needs_no_output(served: Served) -> None:
    body = served.complete(prompt="my lord", echo=True, max_tokens=0, logprobs=0).json()
    assert body["choices"][0]["text"] == "my lord"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert len(body["choices"][0]["logprobs"]["tokens"]) == body["usage"]["prompt_tokens"]


def test_logprobs_name_the_token_and_the_likeliest(
    served: Served, tokenizer: TextTokenizer
) -> None:
    ids = ids_of(tokenizer, "the queen")
    body = served.complete(prompt=ids, logprobs=2, max_tokens=1).json()
    top = body["choices"][0]["logprobs"]["top_logprobs"][0]
    assert len(top) == 3  # the two likeliest and the one drawn
    assert sorted(top.values()) == sorted([-0.5, -1.5, logprobs_of(ids[0], 0).logprob])


def test_bytes_that_are_no_text_are_named(served: Served, tokenizer: TextTokenizer) -> None:
    half = [id for id in range(2048) if tokenizer.token_bytes.of(id) == b"\xe2"]
    served.engine.script = lambda request: iter(half * 2)
    body = served.complete(prompt="x", logprobs=0, max_tokens=2).json()
    assert body["choices"][0]["logprobs"]["tokens"] == ["bytes:\\xe2"] * 2
    assert body["choices"][0]["text"] == "��"


def test_token_ids_are_returned_when_asked_for(served: Served, tokenizer: TextTokenizer) -> None:
    ids = ids_of(tokenizer, "the queen")
    plain = served.complete(prompt=ids, max_tokens=2).json()["choices"][0]
    told = served.complete(prompt=ids, max_tokens=2, return_token_ids=True).json()["choices"][0]
    assert "token_ids" not in plain
    assert told["token_ids"] == (ids * 2)[:2]
    assert told["prompt_token_ids"] == ids


def test_sampling_reaches_the_engine(served: Served) -> None:
    served.complete(
        prompt="a",
        temperature=0,
        top_k=-1,
        top_p=0.5,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias={"7": -100},
        cache_salt="mine",
    )
    (request,) = served.engine.submitted
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.0, 0, 0.5)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.25, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2.0, 2.0)
    assert sampling.logit_bias == ((7, -100.0),)
    assert request.sharing.salt == b"mine"


@pytest.mark.parametrize(("drawn", "code"), [(-1, "not_finite"), (-3, "step_failed")])
def test_output_that_the_model_fails_to_compute_is_an_error(
    served: Served, drawn: int, code: str
) -> None:
    served.engine.script = lambda request: iter([100, drawn])
    reply = served.complete(prompt="a", max_tokens=4)
    assert reply.status_code == 500
    error = reply.json()["error"]
    assert (error["code"], error["type"]) == (code, "server_error")
    lines = served.complete(prompt="a", max_tokens=4, stream=True).text.split("\n\n")
    events = [line for line in lines if line.startswith("data: {")]
    assert json.loads(events[-1].removeprefix("data: "))["error"] == error
