"""pydantic-ai: output_type as a tool, natively and streamed, and a tool of its own."""

import asyncio
import os

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel


class City(BaseModel):
    name: str
    country: str
    population: int


model = OpenAIChatModel(os.environ["OPENAI_MODEL"])

agent = Agent(model, output_type=City, instructions="Be exact.")
assert isinstance(agent.run_sync("Tell me about Paris.").output, City)

native = Agent(model, output_type=NativeOutput(City))
assert isinstance(native.run_sync("Tell me about Paris.").output, City)

either = Agent(model, output_type=[City, int])
assert isinstance(either.run_sync("How many live in Paris?").output, City | int)

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
