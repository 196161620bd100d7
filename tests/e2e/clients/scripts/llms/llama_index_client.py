"""LlamaIndex's `OpenAILike`: complete, chat, streams, a tool, a structured prediction."""

import os
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    name: str
    size: Literal["small", "large"]


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is sunny in {city}."


llm = OpenAILike(
    model=os.environ["OPENAI_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    is_chat_model=True,
    is_function_calling_model=True,
    max_tokens=4000,
)
message = ChatMessage(role="user", content="What is the weather in Paris?")

assert isinstance(llm.complete("Once upon a time").text, str)
assert llm.chat([message]).message.role == "assistant"
assert list(llm.stream_complete("Once upon a time"))
assert list(llm.stream_chat([message]))

tool = FunctionTool.from_defaults(get_weather)
called = llm.chat_with_tools([tool], user_msg="What is the weather?", tool_required=True)
(call, *_) = llm.get_tool_calls_from_response(called)
assert "city" in call.tool_kwargs

city = llm.structured_predict(City, PromptTemplate("Tell me about {name}."), name="Paris")
assert isinstance(city, City)

plain = OpenAILike(
    model=os.environ["OPENAI_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    is_chat_model=False,
    max_tokens=20,
)
assert isinstance(plain.complete("Once upon a time").text, str)
