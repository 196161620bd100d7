"""Answers of the routes of models, as they are sent: OpenAI's objects, with what Quire adds."""

import msgspec
from msgspec import UNSET, UnsetType


class ModelAbilities(msgspec.Struct, frozen=True):
    """The abilities of a model: `chat` wants a chat template, `reasoning` that it comes apart from
    the content. `tool_format` is the format of its tool calls by its name, null without `tools`;
    `generic` where the chat template shows none: tools are then described in the system's text, and
    calls are a JSON list."""

    completion: bool
    chat: bool
    tools: bool
    reasoning: bool
    structured_outputs: bool
    embeddings: bool
    rerank: bool
    tool_format: str | None = None


class ModelStatus(msgspec.Struct, frozen=True):
    """`value` is unloaded, loading, loaded, unloading or failed; `reason` says why it failed."""

    value: str
    reason: str | UnsetType = UNSET


class ModelCard(msgspec.Struct, frozen=True):
    """`max_model_len` is the context in tokens, prompt and output; it and `capabilities` are null
    until the model has been loaded once. `kind` is `generate`, or once it is loaded
    `embed` for a model that gives embeddings alone, `score` for a cross-encoder."""

    id: str
    created: int
    root: str
    max_model_len: int | None
    status: ModelStatus
    capabilities: ModelAbilities | None = None
    kind: str = "generate"
    object: str = "model"
    owned_by: str = "quire"
    parent: None = None


class ModelList(msgspec.Struct, frozen=True):
    data: tuple[ModelCard, ...]
    object: str = "list"


class ModelChanged(msgspec.Struct, frozen=True):
    """The state of a model after it was to be loaded or unloaded."""

    id: str
    status: ModelStatus
    object: str = "model.status"


class FlightRecordWritten(msgspec.Struct, frozen=True):
    """A file that was written: its `path` on the server's machine, how large it is, the Unix times
    of the first and the last step in it, and how many steps there are."""

    id: str
    path: str
    bytes: int
    began: int
    ended: int
    steps: int
    object: str = "flight_record"
