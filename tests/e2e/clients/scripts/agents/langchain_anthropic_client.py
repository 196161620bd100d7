"""LangChain over messages: invoke, a stream, bind_tools with its loop, a structured output."""

import os

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is sunny in {city}."


class Joke(BaseModel):
    """A joke to tell to a user."""

    setup: str
    punchline: str


model = ChatAnthropic(model=os.environ["OPENAI_MODEL"], max_tokens=4000)
messages = [HumanMessage("What is the weather in Paris?")]

assert isinstance(model.invoke(messages).text, str)
assert list(model.stream(messages))

answer = model.bind_tools([get_weather], tool_choice="any").invoke(messages)
assert answer.tool_calls
messages += [answer, *map(get_weather.invoke, answer.tool_calls)]
assert model.bind_tools([get_weather]).invoke(messages).usage_metadata["output_tokens"] > 0

assert isinstance(model.with_structured_output(Joke).invoke("Tell me a joke."), Joke)
