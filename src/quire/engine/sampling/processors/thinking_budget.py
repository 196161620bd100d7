"""`thinking_token_budget`: reasoning is closed by force after this number of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.engine.sampling.logits_processor import ProcessorContext, RowEdits
from quire.scheduler.request import ThinkingBudget


class TokenTexts:
    """Gives each token a text in which tags are found: its bytes, a character each. Where these are
    not known, it is one character of the token's own."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes

    def of(self, token_id: int) -> str:
        """Return the text of a token."""
        if not self._token_bytes:
            return chr(token_id)
        known = token_id < len(self._token_bytes)
        return self._token_bytes[token_id].decode("latin-1") if known else ""

    def tag(self, token_ids: Sequence[int]) -> str:
        """Return the text of a tag. A space with which a tokenizer begins each text is no part."""
        text = "".join(map(self.of, token_ids))
        return text.removeprefix(" ") if self._token_bytes else text


@dataclass(slots=True)
class ThinkingLimit:
    """Follows the tags in an output, and forces the closing one when no tokens are left to think.

    Tags are found in the text, whichever tokens it is written by. A token of the tag that a grammar
    does not allow, as within a character of several tokens, is forced as soon as it does.
    """

    budget: ThinkingBudget
    texts: TokenTexts
    num_left: int
    is_open: bool
    num_matched: int = 0
    """The number of tokens of the closing tag at the end of the output."""
    _tags: tuple[str, str] = field(init=False)
    _end: str = ""
    """The end of the text in which a tag may have begun."""

    def __post_init__(self) -> None:
        self._tags = self.texts.tag(self.budget.opens), self.texts.tag(self.budget.closes)

    @property
    def is_done(self) -> bool:
        return False

    def accept(self, token_id: int) -> None:
        self.num_left -= self.is_open
        self.num_matched = _num_matched(self.budget.closes, self.num_matched, token_id)
        self._end += self.texts.of(token_id)
        while (start := self._end.find(tag := self._tags[self.is_open])) >= 0:
            self._end = self._end[start + len(tag) :]
            self.num_left += len(self.budget.closes) if self.is_open else 0
            self.is_open, self.num_matched = not self.is_open, 0
        self._end = self._end[max(len(self._end) - len(tag) + 1, 0) :]

    def edit(self, edits: RowEdits) -> None:
        if self.is_open and self.num_left <= 0:
            edits.force(self.budget.closes[self.num_matched])


def _num_matched(tag: tuple[int, ...], num_before: int, token_id: int) -> int:
    """Return how many tokens of a tag the output ends with, which ended with `num_before` of them
    before this token. A whole tag counts as none."""
    end = (*tag[:num_before], token_id)
    found = next(num for num in range(len(end), -1, -1) if end[len(end) - num :] == tag[:num])
    return found % len(tag)


def build_thinking_budget(context: ProcessorContext) -> ThinkingLimit | None:
    """Return a processor for a request with a budget, which has taken its outputs so far."""
    budget = context.sampling.thinking_budget
    if budget is None:
        return None
    texts = TokenTexts(context.token_bytes)
    limit = ThinkingLimit(budget, texts, budget.max_tokens, budget.is_open)
    for token_id in context.output_ids:
        limit.accept(token_id)
    return limit
