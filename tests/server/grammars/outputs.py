"""Random outputs under a grammar, by the parts that an engine and a server have for them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from quire.engine.grammar.exact_tokenizer import build_vocabulary, read_tokenizer
from quire.engine.grammar.grammars import Grammars, build_grammars
from quire.engine.sampling.logits_processor import ProcessorContext
from quire.engine.sampling.sampling_state import SamplingState, build_sampling_state
from quire.scheduler.request import ReasoningTags, Sampling, Stopping, ThinkingBudget
from quire.server.grammars.answers import answer
from quire.server.grammars.compose import compose
from quire.server.grammars.source import GrammarKind, GrammarSource
from quire.server.text.detokenizer import Detokenizer
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer

MAX_TOKENS = 1500
MAX_WALK = 60


@dataclass(frozen=True, slots=True)
class Output:
    """An output: its tokens without the one that ended it, and whether one did."""

    token_ids: tuple[int, ...]
    has_ended: bool


class Outputs:
    """Draws outputs with the tokens of the tokenizer in `folder`; `end` is the one that ends
    them."""

    def __init__(self, folder: Path, end: str) -> None:
        self.text: TextTokenizer = load_tokenizer(str(folder), None)
        self.end_id = self.text.added_tokens[end]
        self.vocab_size = self.text.num_tokens
        read = read_tokenizer(folder)
        self.grammars: Grammars = build_grammars(
            build_vocabulary(read, self.vocab_size, (self.end_id,))
        )

    def close(self) -> None:
        self.grammars.close()

    def draw(
        self, grammar: str, seed: int, *, is_forced: bool, budget: ThinkingBudget | None = None
    ) -> Output | None:
        """Return an output, whose tokens are drawn at random, with those that are decided one by
        one or, if it `is_forced`, at once; None if it fails. Where the output may end, it does so
        half the time, and later on at once."""
        if not self._compile(grammar):
            return None
        tags = None if budget is None else self._tags(budget)
        state, random, ids = self._state(grammar, budget, tags), Random(seed), list[int]()
        while len(ids) < MAX_TOKENS:
            allowed = self._allowed(state)
            if state.has_failed:
                return None
            token_id = self._choose(allowed, random, is_late=len(ids) > MAX_TOKENS // 5)
            state.append(token_id)
            ids += [token_id, *(state.take_decided() if is_forced else ())]
            if state.has_failed:
                return None
            if self.end_id in ids:
                return Output(tuple(ids[: ids.index(self.end_id)]), True)
        return Output(tuple(ids), False)

    def takes(self, grammar: str, token_ids: Sequence[int]) -> bool:
        """Return whether an output may begin with these tokens."""
        return self._follow(grammar, token_ids) is not None

    def may_end(self, grammar: str, token_ids: Sequence[int]) -> bool:
        """Return whether these tokens may be all of an output."""
        state = self._follow(grammar, token_ids)
        return state is not None and self.end_id in self._allowed(state)

    def _follow(self, grammar: str, token_ids: Sequence[int]) -> SamplingState | None:
        if not self._compile(grammar):
            return None
        state = self._state(grammar)
        for token_id in token_ids:
            if token_id not in self._allowed(state):
                return None
            state.append(token_id)
        return None if state.has_failed else state

    def _compile(self, grammar: str) -> bool:
        if self.grammars.hold("request", grammar):
            return True
        self.grammars.wait(60.0)
        (compiled,) = self.grammars.take_compiled()
        return not compiled.has_failed

    def has_same_masks(
        self, grammar: str, tags: ReasoningTags, seed: int, often: Sequence[Sequence[int]]
    ) -> bool:
        """Return whether the masks of an output are those that are computed for each token alone.
        Its tokens are drawn from all, and from those pieces that are to come `often`."""
        assert self._compile(grammar)
        states, random = (self._state(grammar), self._state(grammar, tags=tags)), Random(seed)
        piece: Sequence[int] = ()
        for _ in range(MAX_WALK):
            allowed, same = (self._allowed(state) for state in states)
            if allowed != same:
                return False
            piece = piece or (random.choice(often) if random.random() < 0.8 else ())
            is_written = bool(piece) and piece[0] in allowed
            token_id = piece[0] if is_written else random.choice(allowed)
            piece = piece[1:] if is_written else ()
            if token_id == self.end_id:
                break
            for state in states:
                state.append(token_id)
        return True

    def _tags(self, budget: ThinkingBudget) -> ReasoningTags:
        opens, closes = (
            self.text.decode(tag, skip_special_tokens=False).strip()
            for tag in (budget.opens, budget.closes)
        )
        return ReasoningTags("" if budget.is_open else opens, closes)

    def _state(
        self,
        grammar: str,
        budget: ThinkingBudget | None = None,
        tags: ReasoningTags | None = None,
    ) -> SamplingState:
        sampling = Sampling(grammar=grammar, reasoning_tags=tags, thinking_budget=budget)
        stopping = Stopping(MAX_TOKENS, eos_token_ids=(self.end_id,))
        context = ProcessorContext(sampling, stopping, (1,), 1, self.grammars.token_bytes)
        return build_sampling_state(context, constraint=self.grammars.build_processor(context))

    def _allowed(self, state: SamplingState) -> list[int]:
        mask = state.edits(self.vocab_size).final_mask
        assert mask is not None or state.has_failed
        if mask is None:
            return []
        bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")
        allowed: list[int] = bits.nonzero()[0].tolist()
        return allowed

    def _choose(self, allowed: list[int], random: Random, *, is_late: bool) -> int:
        """Return a token, for which no random number is drawn where it is the only one."""
        if len(allowed) == 1:
            return allowed[0]
        may_end = self.end_id in allowed and (is_late or random.random() < 0.5)
        return self.end_id if may_end else random.choice(allowed)

    def pieces(self, output: Output, shown: Sequence[str] = ()) -> list[str]:
        """Return the text of an output as it is streamed, token by token."""
        detokenizer = Detokenizer(
            self.text.token_bytes, skip_special_tokens=True, at_start=False, shown=frozenset(shown)
        )
        return [*map(detokenizer.feed, output.token_ids), detokenizer.flush()]

    def written(self, grammar: str, seed: int, budget: ThinkingBudget | None = None) -> Output:
        """Return an output that has ended, which is the same with forced tokens taken at once."""
        alone, forced = (
            self.draw(grammar, seed, is_forced=each, budget=budget) for each in (False, True)
        )
        assert alone is not None and alone == forced and alone.has_ended
        return alone

    def answer(self, source: GrammarSource, seed: int) -> str:
        """Return the text of an answer that has ended."""
        grammar = compose(answer(source).body, None, prompt="", special_tokens={})
        return "".join(self.pieces(self.written(grammar, seed)))


def of_json(schema: object) -> GrammarSource:
    return GrammarSource(GrammarKind.JSON, json.dumps(schema), "response_format")
