"""What reading a request takes: the tokenizer, and the facts that its texts are judged by."""

from typing import NamedTuple

from quire.engine.messages import EngineFacts
from quire.server.text.tokenizer import TextTokenizer


class InputLimits(NamedTuple):
    """What a request is judged by while it is read. It can be pickled.

    `max_outputs` is how many requests the engine holds at most, running and waiting;
    `model_names` are those that clients may ask for.
    """

    facts: EngineFacts
    max_outputs: int
    model_names: tuple[str, ...]


class TextTools(NamedTuple):
    """The limits, and the tokenizer of the model that is served."""

    limits: InputLimits
    tokenizer: TextTokenizer

    @property
    def facts(self) -> EngineFacts:
        return self.limits.facts
