"""The requests of a workload: prompts of words or of people, with fixed or with traced lengths."""

import csv
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from tokenizers import Tokenizer

from bench.prompts import build_prompts
from bench.workloads import TRACED
from quire.workbench.bench.workloads import Workload

MT_BENCH = "mt_bench_questions.jsonl"
AZURE = "azure_llm_2023_conv.csv"
BREAK = "\n\n"
NUM_DRAWS = 20
NUMBERS = 10**9
"""Prompts begin with a number below it, so that a prefix cache finds none of another round."""


class Ask(NamedTuple):
    """One request to send, and how long its answer has to be."""

    prompt: str
    num_output_tokens: int


class Length(NamedTuple):
    """Tokens of one request of a trace."""

    num_prompt_tokens: int
    num_output_tokens: int


class Texts(Protocol):
    """Makes prompts of the exact lengths of a workload; `name` says what they are made of."""

    @property
    def name(self) -> str: ...

    def texts(self, workload: Workload, seed: int) -> list[str]: ...

    def text(self, seed: str, num_tokens: int) -> str: ...


@dataclass(frozen=True, slots=True)
class PeoplesPrompts:
    """Prompts of MT-bench's questions in random order, behind a number, cut to length."""

    tokenizer: Tokenizer
    questions: tuple[str, ...]

    @property
    def name(self) -> str:
        return "MT-bench"

    def texts(self, workload: Workload, seed: int) -> list[str]:
        """One prompt for each request of the workload; only the shared part is common to them."""
        shared = self.text(f"{seed}/{workload.name}/shared", workload.num_shared_tokens)
        return [
            self._after(shared, f"{seed}/{workload.name}/{index}", workload.num_prompt_tokens)
            for index in range(workload.num_requests)
        ]

    def text(self, seed: str, num_tokens: int) -> str:
        """Return a prompt of so many tokens; equal seeds give equal prompts."""
        return self._after("", seed, num_tokens)

    def _after(self, shared: str, seed: str, num_tokens: int) -> str:
        """Return `shared` and questions after it, exactly `num_tokens` tokens in all.

        Raises ValueError where no cut of NUM_DRAWS orders of the questions gives that number.
        """
        for draw in range(NUM_DRAWS):
            drawn = random.Random(f"{seed}/{draw}" if draw else seed)
            questions = drawn.sample(self.questions, len(self.questions))
            number = f"Task {drawn.randrange(NUMBERS)}."
            whole = BREAK.join([*filter(None, [shared]), number, *questions])
            text = self._cut(whole, num_tokens)
            if text is not None:
                return text
        raise ValueError(f"no cut of these questions has {num_tokens} tokens")

    def _cut(self, whole: str, num_tokens: int) -> str | None:
        """The first characters of a text that are so many tokens; the end may need words more."""
        if num_tokens == 0:
            return ""
        ends = self.tokenizer.encode(whole, add_special_tokens=False).offsets
        for _, end in ends[num_tokens - 1 : num_tokens + 8]:
            text = whole[:end]
            if len(self.tokenizer.encode(text, add_special_tokens=False).ids) == num_tokens:
                return text
        return None


@dataclass(frozen=True, slots=True)
class RequestSource:
    """Draws the requests of a workload; equal seeds give equal requests.

    lengths: those of a trace, in its order, for the workload TRACED.
    """

    prompts: Texts
    lengths: tuple[Length, ...] = ()

    @property
    def name(self) -> str:
        """The kind of prompts."""
        return self.prompts.name

    def asks(self, workload: Workload, seed: int) -> list[Ask]:
        """Return the requests of a workload in one round."""
        if workload.name != TRACED.name:
            texts = self.prompts.texts(workload, seed)
            return [Ask(text, workload.num_output_tokens) for text in texts]
        fitting = [
            each for each in self.lengths if each.num_prompt_tokens <= TRACED.num_prompt_tokens
        ]
        first = random.Random(seed).randrange(len(fitting) - workload.num_requests)
        return [
            Ask(
                self.prompts.text(f"{seed}/{workload.name}/{index}", each.num_prompt_tokens),
                min(each.num_output_tokens, workload.num_output_tokens),
            )
            for index, each in enumerate(fitting[first : first + workload.num_requests])
        ]


def build_source(model_dir: Path, data_dir: Path | None) -> RequestSource:
    """Return prompts of people where there is a folder of data, else of words."""
    if data_dir is None:
        return RequestSource(build_prompts(model_dir))
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    rows = (data_dir / MT_BENCH).read_text(encoding="utf-8").splitlines()
    questions = tuple(turn for row in rows for turn in json.loads(row)["turns"])
    return RequestSource(PeoplesPrompts(tokenizer, questions), read_lengths(data_dir / AZURE))


def read_lengths(path: Path) -> tuple[Length, ...]:
    """Return the lengths of the requests of an Azure trace of 2023, in its order."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(
            Length(int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row in csv.DictReader(file)
        )
