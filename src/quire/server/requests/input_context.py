"""The tokenizer and the limits of the model: what it takes to parse the input of a request."""

from typing import NamedTuple

from quire.engine.messages import EngineFacts
from quire.server.text.tokenizer import TextTokenizer


class InputLimits(NamedTuple):
    """Limits that a request is checked against while it is parsed. They can be pickled.

    max_outputs: how many requests the engine holds at most, running and waiting.
    model_names: the names that clients may ask for.
    """

    facts: EngineFacts
    max_outputs: int
    model_names: tuple[str, ...]


class InputContext(NamedTuple):
    """All that parsing a request needs: the limits, and the tokenizer of the model that is
    served."""

    limits: InputLimits
    tokenizer: TextTokenizer

    @property
    def facts(self) -> EngineFacts:
        return self.limits.facts
