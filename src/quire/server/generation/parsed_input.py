"""The result of an API's parser: prompts in tokens, or the whole answer where that needs no engine.

Parsing may take long for a large body: `InputReader` decides in which thread or process it runs,
one call for each request. A parser is a function of a module, so that a process finds it by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from quire.scheduler.request import NewRequest, ThinkingBudget
from quire.server.generation.context import Prompt
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.protocol.completions import CompletionRequest
from quire.server.grammars.client_names import OWN_NAMES, ClientNames
from quire.server.grammars.compose import Grammar
from quire.server.models.input_context import InputContext
from quire.server.models.served_model import ServingState
from quire.server.parsers.output_parser import ParserOptions
from quire.server.tenancy.tenants import Tenant


class PromptRequest(Protocol):
    """The fields of a request that ends with its prompts: nothing is generated behind them."""

    model: str | None
    cache_salt: str | None
    priority: int | None
    deadline_ms: float | None


class PooledBuilder(Protocol):
    """Builds the engine requests of a request that ends with its prompts."""

    def build(
        self, answer_id: str, prompts: tuple[Prompt, ...], serving: ServingState, tenant: Tenant
    ) -> tuple[NewRequest, ...]:
        """Return the requests, whose ids begin with that of the answer. Raises RequestError."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """A request for outputs whose `prompts` are tokens. `request` no longer holds what they were
    made of; a prompt's text stays where it is to be echoed. `parsing` says what the outputs are
    parsed for, `grammar` what they must be of, if anything: it is not checked yet.
    `thinking_budget` says how long they may reason, `bad_words` which tokens in a row they never
    hold. `check_s` is how long the grammar's check took.
    `names` are those that the client has for the fields. `asked` is what an API keeps of a request
    for its answer. With `keeps_order` the answer tells in which order the parts of the output came.
    `pooled` builds the engine requests of what ends with its prompts.
    """

    request: CompletionRequest | ChatRequest | PromptRequest
    prompts: tuple[Prompt, ...]
    warnings: tuple[str, ...] = ()
    parsing: ParserOptions = ParserOptions()
    grammar: Grammar | None = None
    thinking_budget: ThinkingBudget | None = None
    check_s: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    names: ClientNames = OWN_NAMES
    asked: object = None
    keeps_order: bool = False
    pooled: PooledBuilder | None = None


@dataclass(frozen=True, slots=True)
class DirectResponse:
    """A whole answer that needed no engine; `body` is its JSON."""

    body: bytes
    warnings: tuple[str, ...] = ()


ParsedInput: TypeAlias = TokenizedRequest | DirectResponse
InputParser: TypeAlias = Callable[[bytes, InputContext], ParsedInput]
"""Parses a body. Raises RequestError."""
