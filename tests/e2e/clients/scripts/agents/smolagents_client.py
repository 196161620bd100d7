"""smolagents' ToolCallingAgent: it may call nothing but its tools."""

import os

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: the name of the city
    """
    return f"It is sunny in {city}."


model = OpenAIServerModel(
    model_id=os.environ["OPENAI_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
)
agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=3)
answer = agent.run("What is the weather in Paris?")
assert answer is not None
steps = [step for step in agent.memory.steps if getattr(step, "tool_calls", None)]
assert steps, "no tool was called"
assert all(step.error is None for step in steps), [step.error for step in steps]
