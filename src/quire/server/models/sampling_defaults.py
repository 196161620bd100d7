"""A model's own sampling defaults, from its `generation_config.json`: they are used where a client
gives nothing. As in vLLM, only what the file states counts, and `do_sample` does not.
"""

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from quire.engine.grammar.tokenizer_facts import TokenizerError
from quire.server.text.tokenizer_files import GENERATION, find_folder


class SamplingDefaults(msgspec.Struct, frozen=True, omit_defaults=True):
    """None: not stated, so OpenAI's default stands."""

    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None

    def with_temperature(self, temperature: float | None) -> "SamplingDefaults":
        """Return these with a temperature, where they have none."""
        return self if self.temperature is not None else replace(self, temperature=temperature)


def load_sampling_defaults(model: str, revision: str | None) -> SamplingDefaults:
    """Read the defaults of a model. Raises TokenizerError, whose text is for people."""
    path = find_folder(model, revision) / GENERATION
    if not path.is_file():
        return SamplingDefaults()
    try:
        return msgspec.json.decode(path.read_bytes(), type=SamplingDefaults)
    except msgspec.DecodeError as error:
        raise TokenizerError(
            f"cannot use {path}: {error}; --generation-config none leaves it unread"
        ) from error
