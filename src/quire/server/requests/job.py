"""A job is one HTTP request after intake: what the engine is asked, how tokens become text."""

from dataclasses import dataclass
from typing import NamedTuple

from quire.scheduler.request import NewRequest
from quire.server.tenancy.tenants import Arrival


@dataclass(frozen=True, slots=True)
class TextPlan:
    """How the tokens of a job's outputs become text.

    `echo` gives the prompt's text before the output; `drop_output` gives nothing but that.
    Log probabilities that come without `logprobs` are for the ranking alone.
    """

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    echo: bool = False
    drop_output: bool = False
    token_ids: bool = False
    logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the answer is sent."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


class Prompt(NamedTuple):
    """`field` is where the client wrote it, `text` what it wrote, if it wrote text."""

    token_ids: tuple[int, ...]
    field: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """`requests` has `num_choices` for each prompt, in the order of the choices' indices. Of these
    the best `num_shown` are told, where that is less.

    `time_limit_s` counts from the arrival. `warnings` are told to the client in a header.
    """

    id: str
    arrival: Arrival
    created_s: int
    model: str
    prompts: tuple[Prompt, ...]
    num_choices: int
    num_shown: int
    requests: tuple[NewRequest, ...]
    text: TextPlan
    delivery: Delivery
    time_limit_s: float | None = None
    warnings: tuple[str, ...] = ()

    def prompt_of(self, index: int) -> Prompt:
        return self.prompts[index // self.num_choices]

    def prompt_shown(self, index: int) -> Prompt:
        """Of the choice that the client knows by this index."""
        return self.prompts[index // self.num_shown]

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt counts once, however many choices it has."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)


class Logged(NamedTuple):
    """One token with its log probabilities; the first token of a prompt has none."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    text_offset: int


class Ending(NamedTuple):
    """Why an output ended: `stop_reason` is the stop string or stop token id."""

    finish_reason: str
    stop_reason: int | str | None = None


class Piece(NamedTuple):
    """A part of one output, or all of it: pieces joined are the output."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logged: tuple[Logged, ...] = ()
    ending: Ending | None = None


class GatheredOutput:
    """The pieces of one output as they come, to be joined at its end."""

    def __init__(self) -> None:
        self.num_parts = 0
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logged: list[Logged] = []
        self._ending: Ending | None = None

    def add(self, piece: Piece) -> None:
        self.num_parts += 1 + len(piece.logged)
        self._texts.append(piece.text)
        self._token_ids += piece.token_ids
        self._logged += piece.logged
        self._ending = piece.ending

    def joined(self) -> Piece:
        text, token_ids = "".join(self._texts), tuple(self._token_ids)
        return Piece(text, token_ids, tuple(self._logged), self._ending)
