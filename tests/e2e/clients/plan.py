"""A plan of what a model says: its answer to a prompt is that of the mark that stands last in it.

A plan is a file of JSON: a list of objects `{"after": MARK, "says": TEXT, "goes_on": false}`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from quire.scheduler.request import NewRequest
from quire.server.grammars.compose import literal
from quire.server.text.tokenizer import TextTokenizer

ELSE = ""
"""The mark of the answer to a prompt without any."""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text `says` as the answer to a prompt whose last mark is `after`. An answer that
    `goes_on` has any letters behind the text, to the last token that there is room for: the engine
    draws these one by one, and does not force them."""

    after: str
    says: str
    goes_on: bool = False

    def grammar(self) -> str:
        """The answer as a grammar of the engine, which leaves no other token."""
        said = literal(self.says)
        return f"start: {said} /[a-z ]+/\n" if self.goes_on else f"start: {said}\n"


class Planned(NamedTuple):
    """A request that can but be answered as planned, and the mark that its answer is planned
    after."""

    request: NewRequest
    mark: str


class Plan:
    """The answers of a model with this tokenizer. Prompts are computed and tokens are drawn as
    ever, but that a grammar leaves the planned ones alone."""

    def __init__(self, answers: Sequence[Answer], tokenizer: TextTokenizer) -> None:
        self._answers = {each.after: each for each in answers}
        self._tokenizer = tokenizer
        assert ELSE in self._answers, "the plan says nothing of a prompt without marks"

    def planned(self, request: NewRequest) -> Planned:
        """Return a request that is answered as planned."""
        prompt = self._tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        mark = max(self._answers, key=lambda each: prompt.rfind(each) if each else -0.5)
        answer, stopping = self._answers[mark], request.stopping
        if answer.goes_on:
            stopping = replace(stopping, min_tokens=stopping.max_tokens)
        sampling = replace(request.sampling, grammar=answer.grammar(), reasoning_tags=None)
        return Planned(replace(request, sampling=sampling, stopping=stopping), mark)


def read_plan(path: Path, tokenizer: TextTokenizer) -> Plan:
    """Read a plan. Raises msgspec.ValidationError where it is none."""
    return Plan(msgspec.json.decode(path.read_bytes(), type=list[Answer]), tokenizer)
