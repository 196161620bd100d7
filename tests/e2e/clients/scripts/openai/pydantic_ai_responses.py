"""pydantic-ai over responses: text, `output_type` as a tool, native and streamed, a tool."""

import asyncio
import os

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIResponsesModel


class City(BaseModel):
    name: str
    population: int


model = OpenAIResponsesModel(os.environ["OPENAI_MODEL"])

assert isinstance(Agent(model, retries=3).run_sync("Tell me about Paris.").output, str)
agent = Agent(model, output_type=City, instructions="Be exact.")
first = agent.run_sync("Tell me about Paris.")
assert isinstance(first.output, City)
again = agent.run_sync("And Rome?", message_history=first.all_messages())
assert isinstance(again.output, City)

native = Agent(model, output_type=NativeOutput(City))
assert isinstance(native.run_sync("Tell me about Paris.").output, City)

teller = Agent(model, output_type=City, retries=3)
asked: list[str] = []


@teller.tool_plain
def look_up(city: str) -> str:
    """Look a city up."""
    asked.append(city)
    return "2,100,000 live there."


assert isinstance(teller.run_sync("Tell me about Paris.").output, City)


async def stream() -> None:
    async with agent.run_stream("Tell me about Paris.") as result:
        assert isinstance(await result.get_output(), City)


asyncio.run(stream())
