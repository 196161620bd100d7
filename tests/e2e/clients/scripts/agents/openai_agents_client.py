"""openai-agents on chat completions: a tool that must be called, an output type, a stream."""

import asyncio
import os

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)


class Report(BaseModel):
    city: str
    degrees: int


asked: list[str] = []


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    asked.append(city)
    return f"It is sunny in {city}."


async def main() -> None:
    model = OpenAIChatCompletionsModel(
        model=os.environ["OPENAI_MODEL"], openai_client=AsyncOpenAI()
    )
    agent = Agent(
        name="Assistant",
        instructions="You answer in haikus.",
        model=model,
        tools=[get_weather],
        model_settings=ModelSettings(tool_choice="required"),
    )
    result = await Runner.run(agent, "What is the weather in Tokyo?")
    assert asked
    assert isinstance(result.final_output, str)

    streamed = Runner.run_streamed(agent, "What is the weather in Oslo?")
    async for _ in streamed.stream_events():
        pass
    assert len(asked) >= 2

    typed = Agent(name="Reporter", model=model, output_type=Report)
    assert isinstance((await Runner.run(typed, "Report the weather.")).final_output, Report)

    helper = Agent(
        name="Helper", handoff_description="Answers all.", model=model, output_type=Report
    )
    triage = Agent(
        name="Triage",
        model=model,
        handoffs=[helper],
        model_settings=ModelSettings(tool_choice="required"),
    )
    assert isinstance((await Runner.run(triage, "Report the weather.")).final_output, Report)


asyncio.run(main())
