"""The tokenizer and the limits of the model: what it takes to parse the input of a request."""

from typing import NamedTuple

from quire.engine.messages import EngineFacts
from quire.server.config import ModelAlias
from quire.server.models.sampling_defaults import SamplingDefaults
from quire.server.parsers.formats import ReasoningFormat, ToolFormat
from quire.server.text.tokenizer import TextTokenizer

MAX_LOGPROBS = 20


class TokenizerSource(NamedTuple):
    """The checkpoint that a worker process loads the tokenizer from."""

    model: str
    revision: str | None


class InputLimits(NamedTuple):
    """Limits that a request is checked against while it is parsed. They can be pickled.

    max_outputs: how many requests the engine holds at most, running and waiting.
    model_names: the names that clients may ask for; `model_aliases` stand for some of them.
    tool_format, reasoning_format: how the model writes calls and reasoning; None if not known.
    trusts_chat_template: whether a request may bring a chat template of its own.
    keeps_prefixes: whether the engine has a prefix cache.
    disables_whitespace: whether JSON has no white space where a request does not say.
    refuses_unknown_fields: whether a field of a message, a tool or a call that is not known is an
        error; else it is left out and reported.
    defaults: the model's own sampling, for what a client leaves out.
    max_logprobs: how many of the likeliest tokens a request may ask for at each position.
    max_retention_s: the longest time for which a request may have its prompt kept; 0: none.
    """

    facts: EngineFacts
    max_outputs: int
    model_names: tuple[str, ...]
    tool_format: ToolFormat | None = None
    reasoning_format: ReasoningFormat | None = None
    max_logprobs: int = MAX_LOGPROBS
    defaults: SamplingDefaults = SamplingDefaults()
    trusts_chat_template: bool = False
    disables_whitespace: bool = False
    refuses_unknown_fields: bool = False
    model_aliases: tuple[ModelAlias, ...] = ()
    keeps_prefixes: bool = True
    max_retention_s: float = 0.0

    def served_name(self, asked: str | None) -> str | None:
        """Return the name of the model for a request that asks for `asked`, the first where it asks
        for none; None where it asks for another model."""
        if asked is None:
            return self.model_names[0]
        if asked in self.model_names:
            return asked
        return next((each.name for each in self.model_aliases if each.matches(asked)), None)


class InputContext(NamedTuple):
    """All that parsing a request needs: the limits, and the tokenizer of the model that is
    served. `in_worker` says that the process is a worker, where long work can be ended;
    `coarse_grammars` that grammars of schemas leave out what may not compile."""

    limits: InputLimits
    tokenizer: TextTokenizer
    source: TokenizerSource
    in_worker: bool = False
    coarse_grammars: bool = False

    @property
    def facts(self) -> EngineFacts:
        return self.limits.facts
