"""A stop string that is a special token ends the output at that token, whether the text has special
tokens or not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.served import Served

STOP = "<|user|>"
EOS = "<|end|>"


def script(served: Served, tokenizer: TextTokenizer, text: str) -> list[int]:
    """Let the engine draw the tokens of a text, the special ones among them."""
    ids = [*tokenizer.encode(text, add_special_tokens=False)]
    served.engine.script = lambda request: iter(ids)
    return ids


@given(
    skips=st.booleans(),
    includes=st.booleans(),
    stream=st.booleans(),
    stops=st.permutations([STOP, "zzz", EOS]),
    ending=st.sampled_from([STOP, EOS]),
)
@cases(30)
def test_it_ends_there_and_is_named(
    module_server: Served,
    tokenizer: TextTokenizer,
    skips: bool,
    includes: bool,
    stream: bool,
    stops: list[str],
    ending: str,
) -> None:
    served = module_server
    script(served, tokenizer, f"farewell{ending}prince and more")
    reply = served.complete(
        prompt="x",
        max_tokens=50,
        stop=stops,
        stream=stream,
        skip_special_tokens=skips,
        include_stop_str_in_output=includes,
        ignore_eos=True,
    )
    choices = [json.loads(reply.text)["choices"][0]] if not stream else chunks(reply.text)
    assert "".join(each["text"] for each in choices) == f"farewell{ending if includes else ''}"
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", ending)


def chunks(text: str) -> list[dict[str, str]]:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data")]
    bodies = [json.loads(event) for event in events if event != "[DONE]"]
    return [choice for body in bodies for choice in body["choices"]]


@pytest.mark.parametrize("skips", [True, False])
def test_other_special_tokens_go_by(served: Served, tokenizer: TextTokenizer, skips: bool) -> None:
    ids = script(served, tokenizer, "one<|system|>two<|assistant|>three")
    body = served.complete(
        prompt="x", max_tokens=len(ids), stop=[STOP], skip_special_tokens=skips
    ).json()
    choice = body["choices"][0]
    assert choice["text"] == tokenizer.decode(tuple(ids), skip_special_tokens=skips)
    assert choice["finish_reason"] == "length"


def test_the_models_own_end_is_no_stop(served: Served, tokenizer: TextTokenizer) -> None:
    """Whatever the client has called it: a call that ends there is complete."""
    script(served, tokenizer, f"farewell{EOS}prince")
    body = served.complete(prompt="x", max_tokens=50, stop=EOS).json()
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("farewell", "stop")
    assert choice["stop_reason"] is None


def test_the_engine_does_not_draw_it_before_the_shortest_output(
    served: Served, tokenizer: TextTokenizer
) -> None:
    """The sampler bans stop tokens until then, as it does the end of the sequence."""
    (stop_id,) = tokenizer.encode(STOP, add_special_tokens=False)
    script(served, tokenizer, "one two three four five")
    served.complete(prompt="x", max_tokens=5, min_tokens=3, stop=STOP, stop_token_ids=[9])
    stopping = served.engine.submitted[-1].stopping
    assert (stopping.stop_token_ids, stopping.min_tokens) == ((9, stop_id), 3)


def test_a_token_that_the_model_has_not_is_no_stop_of_the_engine(served: Served) -> None:
    served.complete(prompt="x", max_tokens=1, stop=["none", "<|no-token|>"])
    assert served.engine.submitted[-1].stopping.stop_token_ids == ()


def test_it_ends_a_chat(served: Served, tokenizer: TextTokenizer) -> None:
    script(served, tokenizer, f"farewell{STOP}prince")
    messages = [{"role": "user", "content": "Hi"}]
    body = served.chat(messages=messages, max_tokens=50, stop=[STOP]).json()
    choice = body["choices"][0]
    assert choice["message"]["content"] == "farewell"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", STOP)
