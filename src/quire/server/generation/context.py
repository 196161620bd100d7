"""The context of one HTTP request once its input is processed.

It holds the requests that go to the engine, and how their tokens become text and an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.scheduler.request import NewRequest
from quire.server.grammars.compose import SchemaPromise
from quire.server.http.report_headers import report_headers
from quire.server.parsers.output_parser import ParserOptions
from quire.server.tenancy.tenants import IncomingRequest


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options of how the tokens of a request's outputs become text.

    stop: strings that end an output; `include_stop` keeps the one that ended it in the text.
    stop_tokens: those of them that are special tokens, by the ids at which the engine ends.
    min_tokens: stop strings count only after so many tokens.
    echo: the prompt's text comes before the output; with `drop_output` nothing follows it, and with
        `scores_echo` it has log probabilities.
    token_ids: the token ids are sent beside the text.
    parsing: what the text is parsed for; without `include_reasoning` the reasoning is not sent.
    old_calls: a call is sent as `function_call`, which older clients read.
    names_tool: the client has named the tool to call, so that the call is no reason of its own for
        the output to end.
    logprobs: log probabilities are sent. Where they come without it, they only rank the choices.
    keeps_order: of a parsed output it is kept in which order its parts came.
    prompt_logprobs: how many alternatives each token of the prompt is sent with, None for no log
        probabilities of the prompt.
    names_tokens: tokens beside log probabilities are written as their ids.
    promises: the schemas that finished outputs are checked against.
    """

    stop: tuple[str, ...] = ()
    stop_tokens: Mapping[int, str] = field(default_factory=dict)
    include_stop: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    echo: bool = False
    scores_echo: bool = False
    drop_output: bool = False
    token_ids: bool = False
    logprobs: bool = False
    prompt_logprobs: int | None = None
    names_tokens: bool = False
    parsing: ParserOptions = ParserOptions()
    include_reasoning: bool = True
    old_calls: bool = False
    names_tool: bool = False
    keeps_order: bool = False
    promises: tuple[SchemaPromise, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """The way in which the answer is sent: as one body or as a stream, and which chunks of it carry
    usage."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


class Prompt(NamedTuple):
    """A prompt in tokens. `field` is the path of the field that the client wrote it in, `text` the
    text that the client wrote, or None where it wrote token ids. `num_cut` tokens were cut off. Of
    a pair of texts the tokens from `second_text` on are of the second type, if there is one. The
    first `num_cacheable` tokens are those that the client wants in the prefix cache, and the first
    `num_cacheable_long` of them for the longer of two times."""

    token_ids: tuple[int, ...]
    field: str
    text: str | None = None
    num_cut: int = 0
    second_text: int | None = None
    num_cacheable: int = 0
    num_cacheable_long: int = 0


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One HTTP request for outputs, as all of the server after the input processing knows it.

    id: the id of the answer (`cmpl-...`, `chatcmpl-...`); ids of engine requests begin with it.
    created_s: seconds since 1970.
    num_choices: how many outputs each prompt gets; the best `num_returned` of them are sent.
    requests: `num_choices` for each prompt, in the order of the choices' indices.
    time_limit_s: seconds from the arrival until the whole output must be there.
    warnings: sentences that the client gets in a header.
    ignored: paths of what was left out of the request, for a header too.
    is_cut: outputs may have fewer tokens than the client allows, since the context ends before.
    notes_turns: the engine is told of each output whether it calls tools, which the client runs.
    """

    id: str
    arrival: IncomingRequest
    created_s: int
    model: str
    prompts: tuple[Prompt, ...]
    num_choices: int
    num_returned: int
    requests: tuple[NewRequest, ...]
    text_options: TextOptions
    delivery: Delivery
    time_limit_s: float | None = None
    warnings: tuple[str, ...] = ()
    is_cut: bool = False
    ignored: tuple[str, ...] = ()
    notes_turns: bool = False

    @property
    def report_headers(self) -> dict[str, str]:
        """Headers that tell what of the request had no effect."""
        return report_headers(self.warnings, self.ignored)

    def prompt_of(self, index: int) -> Prompt:
        """Return the prompt of the choice that the engine computes under this index."""
        return self.prompts[index // self.num_choices]

    def returned_prompt(self, index: int) -> Prompt:
        """Return the prompt of the choice that the client knows by this index."""
        return self.prompts[index // self.num_returned]

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens of all prompts; each counts once, however many choices it has."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)
