"""The names that a client has for the fields of a chat, where its request became one: errors and
grammars then name the fields as the client wrote them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.server.errors import RequestError
from quire.server.grammars.compose import Grammar

_PATH = re.compile(r"\bmessages(\[\d+\])?(\.tool_calls(?:\[\d+\](?:\.function)?)?)?")


@dataclass(frozen=True, slots=True)
class ClientNames:
    """The names that a client has for the fields of a chat.

    patterns: regular expressions of paths, and what takes the place of each.
    origins: for each message, and each call in one, the path at which the client wrote it.
    messages: where the client writes messages, None where that is `messages` itself.
    """

    patterns: tuple[tuple[str, str], ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    messages: str | None = None

    def of(self, text: str) -> str:
        """Return a path, or a sentence with paths, as the client names them."""
        for name, own in self.patterns:
            text = re.sub(name, own, text)
        return text if self.messages is None else _PATH.sub(self._origin, text)

    def error(self, error: RequestError) -> RequestError:
        """Return the error, which now names the fields as the client does."""
        error.param = None if error.param is None else self.of(error.param)
        error.message = self.of(error.message)
        return error

    def grammar(self, grammar: Grammar) -> Grammar:
        """Return a grammar whose errors name the fields as the client does."""
        parts = tuple(map(self.grammar, grammar.parts))
        return grammar._replace(field=self.of(grammar.field), parts=parts)

    def _origin(self, found: re.Match[str]) -> str:
        index, calls = found.groups()
        assert self.messages is not None
        if index is None:
            return self.messages
        message = f"messages{index}"
        call = (calls or "").removesuffix(".function")
        if call == ".tool_calls":
            call += "[0]"
        return self.origins.get(message + call) or self.origins.get(message, self.messages)


OWN_NAMES = ClientNames()
"""The names that a client has who asks for a chat."""
