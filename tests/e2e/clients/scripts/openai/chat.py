"""openai, chats: `parse`, a required tool and its result, streams of both."""

import json
import os

from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ["OPENAI_MODEL"]


class Event(BaseModel):
    name: str
    day: int
    participants: list[str]


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}

client = OpenAI()

completion = client.chat.completions.parse(
    model=MODEL,
    messages=[
        {"role": "system", "content": "Extract the event information."},
        {"role": "user", "content": "Alice and Bob go to a science fair on day 5."},
    ],
    response_format=Event,
)
event = completion.choices[0].message.parsed
assert isinstance(event, Event)

messages = [{"role": "user", "content": "What is the weather in Paris?"}]
answer = client.chat.completions.create(
    model=MODEL, messages=messages, tools=[WEATHER], tool_choice="required"
)
message = answer.choices[0].message
assert message.tool_calls
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls:
    arguments = json.loads(call.function.arguments)
    assert arguments["unit"] in ("celsius", "fahrenheit")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
final = client.chat.completions.create(
    model=MODEL, messages=messages, tools=[WEATHER], max_tokens=50
)
assert final.choices[0].finish_reason in ("stop", "length")

named = {"type": "function", "function": {"name": "get_weather"}}
joined: dict[int, str] = {}
names: list[str] = []
for chunk in client.chat.completions.create(
    model=MODEL, messages=messages[:1], tools=[WEATHER], tool_choice=named, stream=True
):
    for delta in chunk.choices[0].delta.tool_calls or []:
        if delta.function.name:
            names.append(delta.function.name)
        joined[delta.index] = joined.get(delta.index, "") + (delta.function.arguments or "")
assert names == ["get_weather"]
assert json.loads(joined[0])["unit"] in ("celsius", "fahrenheit")

with client.chat.completions.stream(
    model=MODEL, messages=messages[:1], response_format=Event
) as stream:
    for _ in stream:
        pass
    assert isinstance(stream.get_final_completion().choices[0].message.parsed, Event)
