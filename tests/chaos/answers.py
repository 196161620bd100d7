"""The part of an answer that may not depend on what happened to the server meanwhile, and how two
of them differ."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tests.chaos.wire import Reply
from tests.rounding import LAMBDA, compounded

NUM_TERMS, NUM_SUMS, LARGEST_LOGIT = 640, 7, 32
SCORE_TOLERANCE = compounded(LAMBDA * math.sqrt(NUM_TERMS), 2.0**-24) * NUM_SUMS * LARGEST_LOGIT
"""How far rounding alone takes a log probability: a sum of so many products in each layer of the
bundled model, in float32, in logits of that size. Requests that run again run in other company, and
sums may be in another order then. What is of another token or context is off by far more."""


class Usage(msgspec.Struct):
    """The tokens that are counted; how many of the prompt were cached may differ."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class Function(msgspec.Struct):
    """A call, or what a chunk adds to it."""

    name: str = ""
    arguments: str = ""


class Call(msgspec.Struct):
    """A call of a tool; its id is drawn anew each time."""

    function: Function
    index: int = 0


class Message(msgspec.Struct):
    """A message of a chat, or what a chunk adds to it."""

    content: str | None = None
    tool_calls: list[Call] = []


class Scored(msgspec.Struct):
    """A token of a chat with its log probability, and those of the likeliest."""

    token: str
    logprob: float
    top_logprobs: list["Scored"] = []


class Scores(msgspec.Struct):
    """Log probabilities: of a chat in `content`, of a completion in lists that go together."""

    content: list[Scored] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    @property
    def of_tokens(self) -> list["Score"]:
        """Both forms as one; the likeliest come in the order of their numbers."""
        if self.content is not None:
            return [
                Score(
                    each.token,
                    each.logprob,
                    _sorted((top.token, top.logprob) for top in each.top_logprobs),
                )
                for each in self.content
            ]
        lists = zip(self.tokens, self.token_logprobs, self.top_logprobs, strict=True)
        return [Score(token, number, _sorted((top or {}).items())) for token, number, top in lists]


class Score(NamedTuple):
    """A token, its log probability, and the likeliest tokens with theirs; None where the first of a
    prompt has none."""

    token: str
    number: float | None
    top: tuple[tuple[str, float], ...]

    def is_as(self, other: "Score") -> bool:
        """Whether they are the same but for rounding, which may also let two that are next to each
        other change places."""
        numbers = [self.number or 0.0, *(number for _, number in self.top)]
        others = [other.number or 0.0, *(number for _, number in other.top)]
        return (
            self.token == other.token
            and len(numbers) == len(others)
            and all(abs(a - b) <= SCORE_TOLERANCE for a, b in zip(numbers, others, strict=True))
        )


def _sorted(top: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(top, key=lambda pair: -pair[1]))


class Part(msgspec.Struct):
    """A choice of one body, or what a chunk adds to it."""

    index: int
    text: str = ""
    message: Message = msgspec.field(default_factory=Message)
    delta: Message = msgspec.field(default_factory=Message)
    logprobs: Scores | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Fault(msgspec.Struct):
    """An error of OpenAI's shape."""

    message: str
    code: str | None = None


class Piece(msgspec.Struct):
    """A body, or an event of a stream."""

    choices: list[Part] = []
    usage: Usage | None = None
    error: Fault | None = None
    prompt_token_ids: list[int] | None = None


@dataclass(slots=True)
class Choice:
    """One output, joined. `num_ends` counts the reasons to finish that were told: one is right."""

    text: str = ""
    calls: dict[int, Function] = field(default_factory=dict)
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    num_ends: int = 0

    def add(self, part: Part) -> None:
        for message in (part.message, part.delta):
            self.text += message.content or ""
            for place, call in enumerate(message.tool_calls):
                where = max(call.index, place) if message is part.message else call.index
                joined = self.calls.setdefault(where, Function())
                joined.name += call.function.name
                joined.arguments += call.function.arguments
        self.text += part.text
        self.prompt_token_ids += part.prompt_token_ids or []
        self.token_ids += part.token_ids or []
        if part.logprobs is not None:
            self.scores += part.logprobs.of_tokens
            self.offsets += part.logprobs.text_offset
        if part.finish_reason is not None:
            self.finish_reason, self.stop_reason = part.finish_reason, part.stop_reason
            self.num_ends += 1


@dataclass(slots=True)
class Answer:
    """The answer to a request, whether it came as one body or as a stream. `error` is the code and
    message of one that failed, and `fault` says what is wrong with its form."""

    status: int
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    error: str = ""
    fault: str = ""

    @property
    def is_right(self) -> bool:
        """Whether it is a whole answer, with each choice ended once."""
        ended = all(choice.num_ends == 1 for choice in self.choices.values())
        return self.status == 200 and not (self.error or self.fault) and ended

    def add(self, piece: Piece) -> None:
        for part in piece.choices:
            self.choices.setdefault(part.index, Choice()).add(part)
        for choice in self.choices.values() if piece.prompt_token_ids else ():
            choice.prompt_token_ids = piece.prompt_token_ids or []
        if piece.usage is not None:
            self.usage = piece.usage
        if piece.error is not None:
            self.error = f"{piece.error.code}: {piece.error.message}"


def answer_of(reply: Reply) -> Answer:
    """Join what came."""
    answer = Answer(reply.status, fault=reply.fault)
    try:
        if reply.ask.is_stream and reply.status == 200:
            events = reply.events
            if events[-1:] != [b"[DONE]"]:
                answer.fault = answer.fault or "the stream has no end"
            for data in events:
                if data != b"[DONE]":
                    answer.add(msgspec.json.decode(data, type=Piece))
        elif reply.body:
            answer.add(msgspec.json.decode(reply.body, type=Piece))
    except (ValueError, msgspec.DecodeError) as error:
        answer.fault = answer.fault or f"{error}"
    if not (reply.is_whole or answer.fault):
        answer.fault = "no whole answer"
    return answer


def differences(calm: Answer, seen: Answer) -> list[str]:
    """Say in which respects an answer is not that of an undisturbed run."""
    found = []
    for name in ("status", "error", "fault", "usage"):
        was, now = getattr(calm, name), getattr(seen, name)
        if was != now:
            found.append(f"{name}: {was} became {now}")
    if calm.choices.keys() != seen.choices.keys():
        found.append(f"choices: {sorted(calm.choices)} became {sorted(seen.choices)}")
    for index in calm.choices.keys() & seen.choices.keys():
        found += _between(index, calm.choices[index], seen.choices[index])
    return found


def is_beginning(calm: Answer, seen: Answer) -> bool:
    """Return whether all that came of an answer is the beginning of the undisturbed one's. The text
    of a call that was cut off before it was one is content then: its tokens tell."""
    return all(
        index in calm.choices
        and (calm.choices[index].text.startswith(choice.text) or bool(calm.choices[index].calls))
        and calm.choices[index].token_ids[: len(choice.token_ids)] == choice.token_ids
        for index, choice in seen.choices.items()
    )


def _between(index: int, calm: Choice, seen: Choice) -> list[str]:
    found = []
    for name in (
        "text",
        "calls",
        "token_ids",
        "offsets",
        "finish_reason",
        "stop_reason",
        "num_ends",
    ):
        was, now = getattr(calm, name), getattr(seen, name)
        if was != now:
            found.append(f"choice {index}, {name}: {_shown(was, now)}")
    if len(calm.scores) != len(seen.scores):
        found.append(f"choice {index}: {len(calm.scores)} scores became {len(seen.scores)}")
    for at, (was, now) in enumerate(zip(calm.scores, seen.scores, strict=False)):
        if not now.is_as(was):
            found.append(f"choice {index}, score {at}: {was} became {now}")
            break
    return found


def _shown(was: object, now: object) -> str:
    """Show two values from a little before the place where they part."""
    if not (isinstance(was, str | list) and isinstance(now, str | list)):
        return f"{was} became {now}"
    length = min(len(was), len(now))
    at = next((place for place in range(length) if was[place] != now[place]), length)
    near = slice(max(at - 4, 0), at + 8)
    return f"{was[near]!r} became {now[near]!r} at {at}, {len(was)} long became {len(now)}"
