"""What is encoded part by part reads as what is encoded at once."""

import msgspec
import pytest

from quire.server.apis.openai.wire import (
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprob,
)
from quire.server.http.sliced_json import SLICE, encode_sliced


@pytest.mark.parametrize("num_tokens", [0, 1, SLICE, SLICE + 1, 3 * SLICE, 3 * SLICE + 1])
def test_slices_join_to_the_same_json(num_tokens: int) -> None:
    logprobs = CompletionLogprobs(
        tuple(f'"{n}' for n in range(num_tokens)),
        (None,) * num_tokens,
        tuple({f"é{n}": -1.5} for n in range(num_tokens)),
        tuple(range(num_tokens)),
    )
    of_prompt = (None, *({f"{n}": PromptLogprob(-1.5, n, "é")} for n in range(num_tokens)))
    choice = CompletionChoice(1, "text", logprobs, "stop", None, (1, 2), prompt_logprobs=of_prompt)
    whole = msgspec.json.encode(choice)
    assert encode_sliced(choice, "logprobs") == whole
    assert encode_sliced(choice, "logprobs", "prompt_logprobs", "no_field") == whole


def test_nothing_is_null() -> None:
    choice = CompletionChoice(0, "text")
    assert encode_sliced(choice, "logprobs") == msgspec.json.encode(choice)
