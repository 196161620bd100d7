"""The result of an API's parser: prompts in tokens, or the whole answer where that needs no engine.

Parsing may take long for a large body: `InputReader` decides in which thread or process it runs,
one call for each request. A parser is a function of a module, so that a process finds it by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from quire.scheduler.request import NewRequest, ThinkingBudget
from quire.server.generation.context import Prompt, TextOptions
from quire.server.generation.input import OutputOptions
from quire.server.grammars.compose import Grammar
from quire.server.models.input_context import InputContext
from quire.server.models.served_model import ServingState
from quire.server.tenancy.tenants import Tenant


class PromptRequest(Protocol):
    """The fields of a request that ends with its prompts: nothing is generated behind them."""

    @property
    def model(self) -> str | None: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def priority(self) -> int | None: ...
    @property
    def deadline_ms(self) -> float | None: ...


class PooledBuilder(Protocol):
    """Builds the engine requests of a request that ends with its prompts."""

    def build(
        self, answer_id: str, prompts: tuple[Prompt, ...], serving: ServingState, tenant: Tenant
    ) -> tuple[NewRequest, ...]:
        """Return the requests, whose ids begin with that of the answer. Raises RequestError."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """A request for outputs whose `prompts` are tokens; a prompt's text stays where it is to be
    echoed. `request` holds its options, or its fields where nothing is generated.

    warnings: sentences for the client.
    ignored: paths of what was left out.
    text: how the tokens of outputs become text.
    grammar: the grammar that outputs must be of, if any; it is not checked yet. `check_s` is how
        long its check took.
    thinking_budget: the limit on the reasoning of outputs.
    bad_words: sequences of tokens that no output holds.
    asked: whatever an API keeps of a request for its answer.
    pooled: builds the engine requests of a request that ends with its prompts.
    notices: sentences for the server's log, which each model writes once.
    uses_tools: whether the client runs tools, so that its conversation may go on by itself.
    """

    request: OutputOptions | PromptRequest
    prompts: tuple[Prompt, ...]
    warnings: tuple[str, ...] = ()
    text: TextOptions = TextOptions()
    grammar: Grammar | None = None
    thinking_budget: ThinkingBudget | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    check_s: float = 0.0
    asked: object = None
    pooled: PooledBuilder | None = None
    ignored: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    uses_tools: bool = False


@dataclass(frozen=True, slots=True)
class DirectResponse:
    """A whole answer that needed no engine; `body` is its JSON. `ignored` are paths of what was
    left out of the request."""

    body: bytes
    warnings: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


ParsedInput: TypeAlias = TokenizedRequest | DirectResponse
InputParser: TypeAlias = Callable[[bytes, InputContext], ParsedInput]
"""Parses a body. Raises RequestError."""
