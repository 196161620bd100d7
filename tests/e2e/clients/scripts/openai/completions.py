"""openai, completions: several prompts and choices, `logprobs`, `echo`, a stop string, a stream."""

import os

from openai import OpenAI

MODEL = os.environ["OPENAI_MODEL"]
client = OpenAI()
assert MODEL in [each.id for each in client.models.list()]
assert client.models.retrieve(MODEL).id == MODEL

several = client.completions.create(
    model=MODEL, prompt=["Once upon a time", "A king"], n=2, max_tokens=8
)
assert [each.index for each in several.choices] == [0, 1, 2, 3]
assert several.usage.completion_tokens > 0

(choice,) = client.completions.create(
    model=MODEL, prompt="Once upon a time", max_tokens=8, logprobs=2, echo=True, temperature=0
).choices
assert choice.text.startswith("Once upon a time")
assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)

stopped = client.completions.create(
    model=MODEL, prompt="Once upon a time", max_tokens=200, stop=["e"], seed=1
)
assert "e" not in stopped.choices[0].text

*_, before_last, last = client.completions.create(
    model=MODEL,
    prompt="Once upon a time",
    max_tokens=8,
    stream=True,
    stream_options={"include_usage": True},
)
assert before_last.choices[0].finish_reason in ("stop", "length")
assert last.usage.completion_tokens > 0
