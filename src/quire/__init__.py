"""Quire: a continuous-batching inference server for language models.

    from quire import LLM, SamplingParams

The names of the Python interface are imported when they are used first: a server needs none.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from quire.version import __version__

if TYPE_CHECKING:
    from quire.server.config import InvalidOption
    from quire.server.errors import RequestError
    from quire.server.llm.async_llm import AsyncLLM, StartError
    from quire.server.llm.llm import LLM
    from quire.server.llm.outputs import Chunk, Output, RequestOutput, ToolCall
    from quire.server.llm.sampling_params import SamplingParams

__all__ = (
    "LLM",
    "AsyncLLM",
    "Chunk",
    "InvalidOption",
    "Output",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "StartError",
    "ToolCall",
    "__version__",
)
_HOMES = {
    **dict.fromkeys(("AsyncLLM", "StartError"), "llm.async_llm"),
    **dict.fromkeys(("Chunk", "Output", "RequestOutput", "ToolCall"), "llm.outputs"),
    "LLM": "llm.llm",
    "SamplingParams": "llm.sampling_params",
    "InvalidOption": "config",
    "RequestError": "errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"quire.server.{_HOMES[name]}"), name)
