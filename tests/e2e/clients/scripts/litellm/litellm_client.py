"""LiteLLM as a client: completion, a stream, a tool, a schema, embedding, responses, messages."""

import asyncio
import json
import os

import litellm
from pydantic import BaseModel

litellm.suppress_debug_info = True
MODEL = f"openai/{os.environ['OPENAI_MODEL']}"
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class City(BaseModel):
    name: str
    population: int


answer = litellm.completion(model=MODEL, messages=MESSAGES, max_tokens=40)
assert answer.choices[0].message.role == "assistant"
assert answer.usage.completion_tokens > 0

chunks = list(
    litellm.completion(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
)
whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
assert whole.choices[0].finish_reason in ("stop", "length")
assert whole.usage.completion_tokens > 0

called = litellm.completion(model=MODEL, messages=MESSAGES, tools=[WEATHER], tool_choice="required")
call = called.choices[0].message.tool_calls[0]
assert "city" in json.loads(call.function.arguments)

typed = litellm.completion(model=MODEL, messages=MESSAGES, response_format=City)
City.model_validate_json(typed.choices[0].message.content)

vectors = litellm.embedding(model=MODEL, input=["a king", "a queen"])
assert len(vectors.data) == 2

response = litellm.responses(model=MODEL, input="A story.", max_output_tokens=40)
assert response.status in ("completed", "incomplete")

text = litellm.text_completion(model=f"text-completion-{MODEL}", prompt="A", max_tokens=8)
assert text.usage.completion_tokens > 0


async def ask() -> None:
    asked = (litellm.acompletion(model=MODEL, messages=MESSAGES, max_tokens=8) for _ in range(4))
    assert len(await asyncio.gather(*asked)) == 4
    message = await litellm.anthropic.messages.acreate(
        model=f"anthropic/{os.environ['OPENAI_MODEL']}", messages=MESSAGES, max_tokens=40
    )
    assert message["stop_reason"] in ("end_turn", "max_tokens")


asyncio.run(ask())
