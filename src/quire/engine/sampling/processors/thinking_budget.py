"""`thinking_token_budget`: reasoning of so many tokens is closed by force."""

from dataclasses import dataclass

from quire.engine.sampling.logits_processor import ProcessorContext, RowEdits
from quire.scheduler.request import ThinkingBudget


@dataclass(slots=True)
class ThinkingLimit:
    """Follows the tags in an output, and forces the closing one when no tokens are left to think.

    Tags are known by their own token ids: where one is several tokens, and the model writes the
    same text by others, it is not seen. A token of the tag that a grammar does not allow, as within
    a character of several tokens, is forced as soon as it does.
    """

    budget: ThinkingBudget
    num_left: int
    is_open: bool
    num_matched: int = 0

    @property
    def is_done(self) -> bool:
        return False

    @property
    def _tag(self) -> tuple[int, ...]:
        """The tag that comes next."""
        return self.budget.closes if self.is_open else self.budget.opens

    def accept(self, token_id: int) -> None:
        self.num_matched = _num_matched(self._tag, self.num_matched, token_id)
        self.num_left -= self.is_open
        if self.num_matched == len(self._tag):
            self.num_left += len(self._tag) if self.is_open else 0
            self.is_open, self.num_matched = not self.is_open, 0

    def edit(self, edits: RowEdits) -> None:
        if self.is_open and self.num_left <= 0:
            edits.force(self._tag[self.num_matched])


def _num_matched(tag: tuple[int, ...], num_before: int, token_id: int) -> int:
    """Return how many tokens of a tag the output ends with, which ended with `num_before` of them
    before this token."""
    end = (*tag[:num_before], token_id)
    return next(num for num in range(len(end), -1, -1) if end[len(end) - num :] == tag[:num])


def build_thinking_budget(context: ProcessorContext) -> ThinkingLimit | None:
    """Return a processor for a request with a budget, which has taken its outputs so far."""
    budget = context.sampling.thinking_budget
    if budget is None:
        return None
    limit = ThinkingLimit(budget, budget.max_tokens, budget.is_open)
    for token_id in context.output_ids:
        limit.accept(token_id)
    return limit
