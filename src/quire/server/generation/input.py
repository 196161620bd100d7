"""The input of a model, whichever API it came by: prompts or a conversation, and options of the
outputs. Each value has a path, the keys that lead to it in the client's body, and errors name that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from quire.scheduler.request import Sampling
from quire.server.grammars.source import GrammarSource
from quire.server.models.sampling_defaults import SamplingDefaults
from quire.server.tenancy.latency_targets import NO_TARGETS, LatencyTargets

OptionName: TypeAlias = str
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
ToolMode: TypeAlias = Literal["none", "auto", "required"]


class TruncationSide(StrEnum):
    """The sides at which a prompt can be cut."""

    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """The options of the outputs of one request, under OpenAI's and vLLM's names of fields. None
    leaves a value to the model or to the server.

    num_generated: outputs of each prompt, of which the `num_returned` best are returned.
    default_max_tokens: the length of an output without `max_tokens`; None: the end of the context.
    num_logprobs: the alternatives that each token of an output gets; None: no log probabilities.
    cuts_max_tokens: an output may have fewer than `max_tokens` where the context ends before; else
        that is an error.
    truncate_prompt_tokens: the most tokens of a prompt, -1 for as many as fit; None: no cut.
    session: a name of the conversation that the client gives, "" for none.
    retention_s: the seconds that the prompt is to stay in the prefix cache after the end.
    grammar: the source of the grammar that outputs must be of.
    paths: the client's paths of fields that it has under another name or at another place.
    """

    model: str | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_progress: bool = False
    num_returned: int = 1
    num_generated: int = 1
    max_tokens: int | None = None
    default_max_tokens: int | None = None
    cuts_max_tokens: bool = False
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    add_special_tokens: bool | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    num_logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    truncate_prompt_tokens: int | None = None
    truncation_side: TruncationSide | None = None
    cache_salt: str | None = None
    priority: int | None = None
    deadline_ms: float | None = None
    targets: LatencyTargets = NO_TARGETS
    session: str = ""
    retention_s: float | None = None
    grammar: GrammarSource | None = None
    disable_any_whitespace: bool | None = None
    paths: Mapping[OptionName, str] = field(default_factory=dict)

    def path(self, name: str) -> str:
        """Return the client's path of a field."""
        return self.paths.get(name, name)

    @property
    def drops_output(self) -> bool:
        """Whether no output is asked for. The engine samples one token, which is thrown away."""
        return self.max_tokens == 0

    @property
    def num_outputs_path(self) -> str:
        """The path of the number of outputs."""
        return "best_of" if self.num_generated > self.num_returned else "n"

    def sampling(self, defaults: SamplingDefaults, vocab_size: int) -> Sampling:
        """Return how tokens are sampled, once the options are checked against the vocabulary.

        defaults: the model's own, for what the client leaves out.
        """
        top_k = _first(self.top_k, defaults.top_k, 0)
        return Sampling(
            temperature=_first(self.temperature, defaults.temperature, 1.0),
            top_k=max(0, min(int(top_k), vocab_size)),
            top_p=_first(self.top_p, defaults.top_p, 1.0),
            min_p=_first(self.min_p, defaults.min_p, 0.0),
            repetition_penalty=_first(self.repetition_penalty, defaults.repetition_penalty, 1.0),
            frequency_penalty=_first(self.frequency_penalty, None, 0.0),
            presence_penalty=_first(self.presence_penalty, None, 0.0),
            logit_bias=self.logit_bias,
            allowed_token_ids=self.allowed_token_ids,
            logprob_token_ids=self.logprob_token_ids,
        )


def _first(given: float | None, of_model: float | None, otherwise: float) -> float:
    """Return what the client gave, else what the model's own file says, else OpenAI's default."""
    if given is not None:
        return float(given)
    return otherwise if of_model is None else float(of_model)


class GivenPrompt(NamedTuple):
    """A prompt, as text or token ids, and its path."""

    content: str | tuple[int, ...]
    field: str = "prompt"


@dataclass(frozen=True, slots=True)
class TextInput:
    """Prompts that the model goes on with. The output stands between a prompt and the `suffix`, if
    there is one. With `echo` the prompt's text comes before the output. `no_effect` are paths of
    fields that were accepted and change nothing."""

    prompts: tuple[GivenPrompt, ...]
    options: OutputOptions
    suffix: str | None = None
    echo: bool = False
    no_effect: tuple[str, ...] = ()


class TextPart(NamedTuple):
    """A part of a message that is text."""

    text: str


Part: TypeAlias = TextPart


@dataclass(frozen=True, slots=True)
class InputToolCall:
    """A call that an assistant made. `arguments` is the text that the model wrote where that is no
    JSON object, as of an output that was cut."""

    id: str
    name: str
    arguments: Mapping[str, object] | str
    path: str

    def as_template_call(self) -> dict[str, object]:
        """Return the call as templates expect it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message of a conversation, at `path`. One of the role `tool` is the result of the call
    `tool_call_id`, whose own path is `call_id_path`."""

    role: Role
    parts: tuple[Part, ...]
    path: str
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[InputToolCall, ...] = ()
    tool_call_id: str | None = None
    call_id_path: str = ""

    @property
    def text(self) -> str:
        """The text of all parts, joined by line ends, as vLLM joins them for templates that want
        one string."""
        return "\n".join(part.text for part in self.parts)

    def as_template_message(self) -> dict[str, object]:
        """Return the message as templates expect it."""
        text, calls = self.text, [call.as_template_call() for call in self.tool_calls]
        shown: dict[str, object] = {
            "name": self.name,
            "reasoning_content": self.reasoning,
            # The name in gpt-oss's template, which takes it beside calls where there is no content.
            "thinking": None if calls and text else self.reasoning,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
        }
        given = {name: value for name, value in shown.items() if value is not None}
        return {"role": self.role, "content": text, **given}


@dataclass(frozen=True, slots=True)
class InputTool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments, an
    object, at `schema_path`; where `strict`, calls are held to it. A function of one text may have
    a `text_grammar`, which that text must be of."""

    name: str
    description: str | None
    parameters: Mapping[str, object] | None
    strict: bool
    path: str
    schema_path: str
    text_grammar: GrammarSource | None = None

    @property
    def strict_path(self) -> str:
        """The path of the field for which calls are held to the schema."""
        return f"{self.path}.strict" if self.text_grammar is None else self.text_grammar.field

    def as_template_tool(self) -> dict[str, object]:
        """Return the tool as templates expect it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description or "",
                "parameters": self.parameters or {"type": "object", "properties": {}},
            },
        }


class NamedChoice(NamedTuple):
    """The name of a tool that the model may choose, and its path."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The choice that the model has among the tools.

    mode: whether it calls none, may call, or must; None where the client does not say.
    among: the tools that it may call; None: all.
    names_one: the client has named the one tool to call.
    one_call: an output holds one call at most.
    """

    mode: ToolMode | None = None
    among: tuple[NamedChoice, ...] | None = None
    names_one: bool = False
    one_call: bool = False


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """Options of the chat template. `source` is the request's own template, `continues` says that
    the answer goes on with the last message, and `documents` are shown to the model."""

    add_generation_prompt: bool = True
    continues: bool = False
    kwargs: Mapping[str, object] = field(default_factory=dict)
    source: str | None = None
    documents: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """A conversation that the model goes on with.

    echo: a message that is continued comes whole.
    effort: how far the model is to reason; `thinking_token_budget` limits the tokens of that, and
        without `include_reasoning` it is not sent.
    old_calls: a call is sent as `function_call`, which older clients read.
    num_cached: the messages at the beginning that the client wants in the prefix cache, with the
        tools; None where it does not say. `num_cached_long` are those of them that it wants to be
        kept for the longer of two times.
    keeps_order: the answer tells in which order the parts of the output came.
    drops_turns: a prompt that is too long for the context loses its oldest turns.
    no_effect: paths of fields that were accepted and change nothing.
    ignored: paths of what was left out, since Quire does not know it.
    """

    messages: tuple[InputMessage, ...]
    options: OutputOptions = OutputOptions()
    tools: tuple[InputTool, ...] = ()
    choice: ToolChoice = ToolChoice()
    template: TemplateOptions = TemplateOptions()
    echo: bool = False
    effort: str | None = None
    thinking_token_budget: int | None = None
    include_reasoning: bool = True
    old_calls: bool = False
    num_cached: int | None = None
    num_cached_long: int | None = None
    keeps_order: bool = False
    drops_turns: bool = False
    no_effect: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def path(self, name: str) -> str:
        """Return the client's path of a field."""
        return self.options.path(name)

    @property
    def offered_tools(self) -> tuple[InputTool, ...]:
        """The tools that the prompt describes: none where the model may not call one."""
        return () if self.choice.mode == "none" else self.tools

    @property
    def callable_tools(self) -> tuple[InputTool, ...]:
        """The tools of the prompt that the model may call."""
        if self.choice.among is None:
            return self.offered_tools
        names = {each.name for each in self.choice.among}
        return tuple(tool for tool in self.offered_tools if tool.name in names)

    @property
    def uses_tools(self) -> bool:
        """Whether the client runs tools: it declares some, or has sent the result of one."""
        return bool(self.tools) or any(each.role == "tool" for each in self.messages)

    @property
    def requires_calls(self) -> bool:
        """Whether the model must call a tool."""
        return self.choice.mode == "required"

    @property
    def takes_one_call(self) -> bool:
        """Whether an output may not hold more than one call."""
        return self.choice.one_call or self.choice.names_one


Input: TypeAlias = TextInput | ChatInput
