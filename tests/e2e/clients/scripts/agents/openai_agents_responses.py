"""openai-agents with its defaults, responses: text, a tool, a stream, an output type, a handoff."""

import asyncio
import os

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from pydantic import BaseModel

set_tracing_disabled(True)
MODEL = os.environ["OPENAI_MODEL"]


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
    plain = Agent(name="Assistant", instructions="You answer in haikus.", model=MODEL)
    assert isinstance((await Runner.run(plain, "Tell me a story.")).final_output, str)

    agent = Agent(
        name="Assistant",
        model=MODEL,
        tools=[get_weather],
        model_settings=ModelSettings(tool_choice="required"),
    )
    result = await Runner.run(agent, "What is the weather in Tokyo?")
    assert asked
    assert isinstance(result.final_output, str)
    more = await Runner.run(plain, [*result.to_input_list(), {"role": "user", "content": "More."}])
    assert isinstance(more.final_output, str)

    streamed = Runner.run_streamed(agent, "What is the weather in Oslo?")
    kinds = {event.type async for event in streamed.stream_events()}
    assert {"raw_response_event", "run_item_stream_event"} <= kinds
    assert len(asked) >= 2

    typed = Agent(name="Reporter", model=MODEL, output_type=Report)
    assert isinstance((await Runner.run(typed, "Report the weather.")).final_output, Report)

    triage = Agent(
        name="Triage",
        model=MODEL,
        handoffs=[typed],
        model_settings=ModelSettings(tool_choice="required"),
    )
    assert isinstance((await Runner.run(triage, "Report the weather.")).final_output, Report)


asyncio.run(main())
