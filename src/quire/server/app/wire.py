"""The answers of routes that tell what the server is and does, as they are sent."""

import msgspec
from msgspec import UNSET, UnsetType

from quire.engine.messages import EngineFacts
from quire.server.models.sampling_defaults import SamplingDefaults


class Health(msgspec.Struct, frozen=True):
    """`reason` says why a server is down. Where there are several models, `models` names those that
    are at fault, with what is wrong with each."""

    status: str
    reason: str | None | UnsetType = UNSET
    models: dict[str, str] | UnsetType = UNSET


class StartProgress(msgspec.Struct, frozen=True):
    """`done` of `total` parts of the phase, `elapsed_s` seconds after the start."""

    phase: str
    done: int
    total: int
    elapsed_s: float


class Startup(msgspec.Struct, frozen=True):
    """`progress` is left out once the server has started."""

    status: str
    progress: StartProgress | UnsetType = UNSET


class Version(msgspec.Struct, frozen=True):
    version: str


class ModelInfo(msgspec.Struct, frozen=True):
    """`facts` and `memory` are null while the model is not loaded. `startup_s` then has the seconds
    of each phase of the engine's start and, as `total`, those of the whole load."""

    name: str
    status: str
    facts: EngineFacts | None
    startup_s: dict[str, float]
    memory: dict[str, object] | None
    sampling_defaults: SamplingDefaults
    config: dict[str, object]


class ServerInfo(msgspec.Struct, frozen=True):
    """Everything about the server and its models; what stands beside `models` is about the first of
    them, and `config` about the server and the first."""

    version: str
    phase: str
    facts: EngineFacts | None
    startup_s: dict[str, float]
    memory: dict[str, object] | None
    sampling_defaults: SamplingDefaults
    config: dict[str, object]
    models: tuple[ModelInfo, ...]


class Cancelled(msgspec.Struct, frozen=True):
    """`state` is `cancelling` where the request runs, until the engine has taken its next step, and
    `ended` where it has ended before."""

    id: str
    state: str
    object: str = "request.cancelled"


class ModelLoads(msgspec.Struct, frozen=True):
    """The load of one model after its last step. `blocks` are those of KV memory by their state;
    `predicted_wait_s` are the seconds until what waits now is computed, 0 if that is not known;
    `max_num_queued_reqs` may wait. `num_waiting_for_load` requests wait until it is loaded."""

    model: str
    status: str
    num_running: int
    num_waiting: int
    num_waiting_for_load: int
    max_num_seqs: int
    max_num_queued_reqs: int
    kv_cache_usage: float
    blocks: dict[str, int]
    predicted_wait_s: float


class Loads(msgspec.Struct, frozen=True):
    """The loads of all models, and together: sums, and of usage and wait the most."""

    num_running: int
    num_waiting: int
    max_num_seqs: int
    max_num_queued_reqs: int
    kv_cache_usage: float
    blocks: dict[str, int]
    predicted_wait_s: float
    models: tuple[ModelLoads, ...]
    object: str = "loads"


class CacheMiss(msgspec.Struct, frozen=True):
    """`reason` is `too_short` (for one block), `differs`, `evicted`, `salt`, `state` or `new`;
    `token` is the first of the prompt that it concerns, for `too_short` the prompt's length, for
    `state` the number of tokens whose keys and values are cached without a state."""

    reason: str
    token: int


class CacheProbe(msgspec.Struct, frozen=True):
    """The leading tokens of a prompt that the prefix cache holds: `cached_tokens` in all,
    `device_tokens` without a copy from the host. `miss` is null where no more could be. `state` is
    the memory of the state after them, `device` or `host`; null without recurrent layers."""

    model: str
    prompt_tokens: int
    cached_tokens: int
    device_tokens: int
    miss: CacheMiss | None
    state: str | None = None
    object: str = "cache.probe"


class ResetSent(msgspec.Struct, frozen=True):
    """The engines have been told to empty the prefix cache."""

    status: str = "sent"
