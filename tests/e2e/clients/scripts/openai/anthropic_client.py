"""anthropic: messages, a stream, a tool and its result, `count_tokens`."""

import os

from anthropic import Anthropic

MODEL = os.environ["OPENAI_MODEL"]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
client = Anthropic()
messages = [{"role": "user", "content": "What is the weather in Paris?"}]

message = client.messages.create(model=MODEL, max_tokens=40, system="Be brief.", messages=messages)
assert message.stop_reason in ("end_turn", "max_tokens")
assert {each.type for each in message.content} <= {"text"}
assert message.usage.output_tokens > 0

with client.messages.stream(model=MODEL, max_tokens=40, messages=messages) as stream:
    text = "".join(stream.text_stream)
    assert "".join(each.text for each in stream.get_final_message().content) == text

called = client.messages.create(
    model=MODEL,
    max_tokens=4000,
    messages=messages,
    tools=[WEATHER],
    tool_choice={"type": "tool", "name": "get_weather"},
)
assert called.stop_reason == "tool_use"
(call,) = [each for each in called.content if each.type == "tool_use"]
assert "city" in call.input
result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
final = client.messages.create(
    model=MODEL,
    max_tokens=40,
    messages=[
        *messages,
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ],
    tools=[WEATHER],
)
assert final.stop_reason in ("end_turn", "max_tokens", "tool_use")

with client.messages.stream(
    model=MODEL, max_tokens=4000, messages=messages, tools=[WEATHER], tool_choice={"type": "any"}
) as stream:
    assert "city" in stream.get_final_message().content[-1].input

assert client.messages.count_tokens(model=MODEL, messages=messages).input_tokens > 0
