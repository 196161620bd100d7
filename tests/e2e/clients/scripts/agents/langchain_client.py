"""LangChain: bind_tools with its loop, with_structured_output in its three methods, an agent."""

import os
from typing import Literal

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


@tool
def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
    """Get the weather of a city."""
    return f"It is 20 degrees {unit} in {city}."


class Joke(BaseModel):
    """A joke to tell to a user."""

    setup: str = Field(description="the question")
    punchline: str
    rating: int | None = Field(default=None, description="from 1 to 10")


model = ChatOpenAI(model=os.environ["OPENAI_MODEL"])

messages = [HumanMessage("What is the weather in Paris?")]
bound = model.bind_tools([get_weather], tool_choice="any")
answer = bound.invoke(messages)
assert answer.tool_calls
messages.append(answer)
for call in answer.tool_calls:
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    messages.append(result)
final = model.bind_tools([get_weather]).bind(max_tokens=50).invoke(messages)
assert isinstance(final.content, str)

streamed = None
for chunk in model.bind_tools([get_weather], tool_choice="get_weather").stream(messages[:1]):
    streamed = chunk if streamed is None else streamed + chunk
assert streamed is not None
assert [call["name"] for call in streamed.tool_calls] == ["get_weather"]

for method in ("json_schema", "function_calling"):
    joke = model.with_structured_output(Joke, method=method).invoke("Tell me a joke about cats.")
    assert isinstance(joke, Joke), method
strict = model.with_structured_output(Joke, method="function_calling", strict=True)
assert isinstance(strict.invoke("Tell me a joke about cats."), Joke)
untyped = model.with_structured_output(None, method="json_mode")
assert isinstance(untyped.invoke("Tell me a joke as JSON."), dict)

agent = create_agent(model, tools=[], response_format=ToolStrategy(Joke))
state = agent.invoke({"messages": [{"role": "user", "content": "Tell me a joke about cats."}]})
assert isinstance(state["structured_response"], Joke)
