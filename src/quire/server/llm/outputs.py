"""The outputs of a model, as a program gets them."""

from typing import NamedTuple

from quire.server.generation.output_delta import LogprobEntry, OutputDelta


class ToolCall(NamedTuple):
    """A call of a tool; `arguments` is the text of a JSON object, unless the output was cut."""

    id: str
    name: str
    arguments: str


class Output(NamedTuple):
    """One output. `finish_reason` is `stop`, `length` or `tool_calls`, in OpenAI's words;
    `stop_reason` the stop string or token that ended it, if one did. Of an output that is parsed
    `text` is the content. `logprobs` has an entry for each token where they were asked for."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: int | str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()


class RequestOutput(NamedTuple):
    """The outputs of one prompt or conversation: `n` of them. `num_cached_tokens` of its prompt
    were found in the prefix cache."""

    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Output, ...]
    num_cached_tokens: int

    @property
    def text(self) -> str:
        """The text of the first output."""
        return self.outputs[0].text


class Chunk(NamedTuple):
    """A part of an output: what has come of it since the last part. `number` tells the `n` outputs
    of a prompt apart. The last part of an output has a `finish_reason`."""

    number: int
    text: str
    token_ids: tuple[int, ...]
    reasoning: str = ""
    finish_reason: str | None = None


def output_of(delta: OutputDelta) -> Output:
    """Return a whole output, joined, as a program gets it."""
    ending = delta.ending
    return Output(
        delta.text,
        delta.token_ids,
        "" if ending is None else ending.finish_reason,
        None if ending is None else ending.stop_reason,
        delta.reasoning,
        tuple(ToolCall(call.id or "", call.name or "", call.arguments) for call in delta.calls),
        delta.logprobs,
    )


def chunk_of(number: int, delta: OutputDelta) -> Chunk:
    """Return a part of an output as a program gets it."""
    reason = None if delta.ending is None else delta.ending.finish_reason
    return Chunk(number, delta.text, delta.token_ids, delta.reasoning, reason)
