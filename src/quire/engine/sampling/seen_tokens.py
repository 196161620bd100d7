"""The distinct tokens of a request, and how often each of them was sampled."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class SeenTokens:
    """The distinct token ids of a request in order of first occurrence, and how often each is among
    its outputs."""

    ids: "array[int]" = field(default_factory=lambda: array("q"))
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    _indices: dict[int, int] = field(default_factory=dict, init=False)

    def add(self, token_ids: Iterable[int], *, are_outputs: bool) -> None:
        """Add tokens of the prompt, which are not counted, or outputs, which are."""
        for token_id in token_ids:
            index = self._indices.setdefault(token_id, len(self.ids))
            if index == len(self.ids):
                self.ids.append(token_id)
                self.counts.append(0)
            self.counts[index] += are_outputs

    def index_of(self, token_id: int) -> int | None:
        """Return the index of an id in `ids`, or None if it did not occur."""
        return self._indices.get(token_id)
