"""openai, responses: create, go on from it, retrieve, in the background, a stream, `parse`, a tool
and its result, a streamed call."""

import json
import os
import time

from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ["OPENAI_MODEL"]
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Event(BaseModel):
    name: str
    day: int


client = OpenAI()

response = client.responses.create(
    model=MODEL, instructions="Be brief.", input="Tell me a story.", max_output_tokens=40
)
assert response.status in ("completed", "incomplete")
assert isinstance(response.output_text, str)
assert response.usage.output_tokens > 0

assert client.responses.retrieve(response.id).output_text == response.output_text
more = client.responses.create(
    model=MODEL, input="And then?", previous_response_id=response.id, max_output_tokens=40
)
assert more.previous_response_id == response.id
assert more.usage.input_tokens > response.usage.input_tokens
assert len(client.responses.input_items.list(more.id).data) >= 1
client.responses.delete(response.id)

later = client.responses.create(
    model=MODEL, input="A story.", max_output_tokens=40, background=True
)
while later.status in ("queued", "in_progress"):
    time.sleep(0.1)
    later = client.responses.retrieve(later.id)
assert later.status in ("completed", "incomplete")

kinds = []
told = ""
with client.responses.stream(model=MODEL, input="Tell me a story.") as stream:
    for event in stream:
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            told += event.delta
    final = stream.get_final_response()
assert kinds[0] == "response.created"
assert kinds[-1] == "response.completed"
assert final.output_text == told

parsed = client.responses.parse(model=MODEL, input="A fair on day 5.", text_format=Event)
assert isinstance(parsed.output_parsed, Event)

items = [{"role": "user", "content": "What is the weather in Paris?"}]
called = client.responses.create(
    model=MODEL, input=items, tools=[WEATHER], tool_choice="required", store=False
)
calls = [each for each in called.output if each.type == "function_call"]
assert calls
items += called.output
for call in calls:
    assert "city" in json.loads(call.arguments)
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
answer = client.responses.create(
    model=MODEL, input=items, tools=[WEATHER], max_output_tokens=40, store=False
)
assert answer.status in ("completed", "incomplete")

arguments = ""
for event in client.responses.create(
    model=MODEL,
    input="What is the weather in Rome?",
    tools=[WEATHER],
    tool_choice={"type": "function", "name": "get_weather"},
    stream=True,
):
    if event.type == "response.function_call_arguments.delta":
        arguments += event.delta
assert "city" in json.loads(arguments)
