"""A chat as it stands: what was said, and how the next answer is asked for."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Turn(NamedTuple):
    """A message and the answer to it, as far as it came."""

    question: str
    answer: str


@dataclass(slots=True)
class Conversation:
    """The conversation with one model.

    options: fields of a request by name; what is not in it is the server's default.
    last_question: the message that was sent last; `is_answered` says whether its answer is the last
        of `turns`.
    """

    model: str
    system: str = ""
    options: dict[str, int | float] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    last_question: str | None = None
    is_answered: bool = False

    def body(self, question: str | None = None) -> dict[str, object]:
        """Return the fields of the request that sends `question`, or without one all so far."""
        return {"model": self.model, "messages": list(self._messages(question)), **self.options}

    def _messages(self, question: str | None) -> Iterator[dict[str, str]]:
        if self.system:
            yield {"role": "system", "content": self.system}
        for turn in self.turns:
            yield {"role": "user", "content": turn.question}
            yield {"role": "assistant", "content": turn.answer}
        if question is not None:
            yield {"role": "user", "content": question}

    def ask(self, question: str) -> dict[str, object]:
        """Return the fields of the request that sends a message, and remember that."""
        self.last_question, self.is_answered = question, False
        return self.body(question)

    def answer(self, answer: str) -> None:
        """Take in the answer to the last message, as far as it came. A message without any is left
        out, so that the next one does not follow it; `last_question` keeps it."""
        if answer and self.last_question is not None:
            self.turns.append(Turn(self.last_question, answer))
            self.is_answered = True

    def take_back(self) -> str | None:
        """Return the last message, to be sent again, and forget the answer to it. None if there
        was none."""
        if self.is_answered:
            self.turns.pop()
            self.is_answered = False
        return self.last_question

    def clear(self) -> None:
        """Forget what was said; the system prompt and the options stay."""
        self.turns.clear()
        self.last_question, self.is_answered = None, False
