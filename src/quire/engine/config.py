"""The configuration of an engine, in groups for its parts. Values come from
`server/cli/settings.py`; nothing here reads the environment."""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from quire.cache.block_hash import HashAlgorithm
from quire.cache.sizing import BLOCK_SIZES, DEFAULT_SHARE, Budget
from quire.models.config import (
    AttentionBackendName,
    CUDAGraphMode,
    KVCacheDtype,
    KVOptions,
    LinearBackend,
    ModelDtype,
    Quantization,
)
from quire.models.optimizations import Optimization
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName, QueueOrder

TOY_MODEL = "toy"
"""The name of the deterministic model of the tests, which needs no checkpoint."""
LEAST_MODEL_LEN = 2
"""The least length of a request: a token of prompt and one of output."""

MAX_RANKS = 64


class LogLevel(StrEnum):
    """The least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The form of the lines that are logged: for people, or a JSON object each."""

    TEXT = "text"
    JSON = "json"


class PoolingName(StrEnum):
    """The tokens whose states become a text's embedding. `AUTO`: as the checkpoint's files say,
    else the last of a causal model."""

    AUTO = "auto"
    LAST = "last"
    MEAN = "mean"
    CLS = "cls"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of the model: which one, on which device, in which numbers, by which
    kernels.

    model: a Hugging Face id, a local folder, or TOY_MODEL.
    device: auto, cpu, cuda or cuda:N.
    num_threads: CPU threads of the engine, or of each of its ranks; None for torch's default, which
        ranks share.
    tensor_parallel_size: the ranks that weights and KV heads are divided among, a process each.
    cudagraph_mode: the steps that are recorded as CUDA graphs.
    enforce_eager: none are, whatever `cudagraph_mode` says.
    weights_cache_dir: the folder that keeps packed weights from one start to the next.
    disable_optimizations: what is not used, so that a kernel at fault can be found.
    """

    model: str
    revision: str | None = None
    trust_remote_code: bool = False
    device: str = "auto"
    dtype: ModelDtype = ModelDtype.AUTO
    num_threads: int | None = None
    tensor_parallel_size: int = 1
    attention_backend: AttentionBackendName = AttentionBackendName.AUTO
    linear_backend: LinearBackend = LinearBackend.AUTO
    quantization: Quantization = Quantization.NONE
    pooling: PoolingName = PoolingName.AUTO
    cudagraph_mode: CUDAGraphMode = CUDAGraphMode.FULL_DECODE_ONLY
    enforce_eager: bool = False
    weights_cache_dir: str | None = None
    disable_optimizations: tuple[Optimization, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """The configuration of K and V: how much memory they get, how they are stored and shared.

    num_gpu_blocks_override, kv_cache_memory_bytes, kv_cache_tokens, gpu_memory_utilization: KV
        memory in blocks, bytes, tokens of context, or as the share of the device that the model
        and KV take together; at most one of them.
    swap_space: host memory for swapped blocks and states, in GiB; None for 4 beside a GPU, 0 on a
        CPU.
    is_device_shared: engines of other models have their own shares of the device, so that what they
        use is not taken from this one's.
    num_recurrent_states: states of recurrent layers, the null state among them; None for as many as
        memory and `max_num_seqs` suggest.
    state_snapshot_interval: tokens between further snapshots of states in a prompt; 0 for none.
    prefix_caching_seed: makes the digests of blocks the same in every process; None for a random
        one.
    prefix_cache_dir, prefix_cache_bytes: the folder that keeps blocks beyond the engine's life, and
        the most bytes in it; both or neither.
    kv_transfer_listen, kv_transfer_peers: HOST:PORT where other engines get the blocks in that
        folder, and of engines to get blocks from.
    kv_transfer_secret_file: the file with what all of these engines know and nobody else does.
    """

    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    swap_space: float | None = None
    kv_cache_dtype: KVCacheDtype = KVCacheDtype.AUTO
    disable_hybrid_kv_cache_manager: bool = False
    num_recurrent_states: int | None = None
    state_snapshot_interval: int = 0
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: HashAlgorithm = HashAlgorithm.SHA256
    prefix_caching_seed: str | None = None
    prefix_cache_dir: str | None = None
    prefix_cache_bytes: int | None = None
    kv_transfer_listen: str | None = None
    kv_transfer_peers: tuple[str, ...] = ()
    kv_transfer_secret_file: str | None = None
    is_device_shared: bool = False

    @property
    def budget(self) -> Budget:
        """The budget of KV memory. Raises ValueError if it is given in two ways."""
        return Budget(
            self.num_gpu_blocks_override,
            self.kv_cache_memory_bytes,
            self.kv_cache_tokens,
            self.gpu_memory_utilization,
            self.is_device_shared,
        )

    @property
    def memory_share(self) -> float:
        """`gpu_memory_utilization`, or its default."""
        share = self.gpu_memory_utilization
        return DEFAULT_SHARE if share is None else share


@dataclass(frozen=True, slots=True)
class PriorityTargets:
    """The latency targets of requests of one priority: milliseconds to the first token and between
    tokens; None for no target."""

    priority: int
    ttft_ms: float | None = None
    itl_ms: float | None = None


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """The limits of requests and steps, and the order of service.

    max_model_len, max_num_batched_tokens: tokens of a request and of a step; None for a value
        derived from the model and the device, which the memory receipt tells.
    async_scheduling: whether a step is scheduled while the device computes the one before; None for
        yes beside a GPU, no on a CPU.
    queue_order: the order of requests that the policy holds equal.
    target_ttft_ms, target_itl_ms: milliseconds to the first token of a request, and between its
        tokens, where neither the request, its key nor its priority says; None for no target.
    priority_targets: those of priorities.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int = 1024
    scheduling_policy: PolicyName = PolicyName.FCFS
    priority_ageing_s: float = 30.0
    queue_order: QueueOrder = QueueOrder.ARRIVAL
    max_skips: int = 16
    max_pinned_share: float = 0.5
    wait_for_prefix: bool = True
    keep_sessions: bool = True
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    async_scheduling: bool | None = None
    target_ttft_ms: float | None = None
    target_itl_ms: float | None = None
    priority_targets: tuple[PriorityTargets, ...] = ()

    def scheduler_config(
        self, max_num_batched_tokens: int, max_model_len: int, *, cuts_prompts: bool = True
    ) -> SchedulerConfig:
        """Return the configuration of the scheduler under limits that were derived. Raises
        ValueError if a value is out of its range."""
        return SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            max_num_queued_reqs=self.max_num_queued_reqs,
            scheduling_policy=self.scheduling_policy,
            priority_ageing_s=self.priority_ageing_s,
            queue_order=self.queue_order,
            max_skips=self.max_skips,
            max_pinned_share=self.max_pinned_share,
            wait_for_prefix=self.wait_for_prefix,
            keep_sessions=self.keep_sessions,
            preemption_mode=self.preemption_mode,
            cuts_prompts=cuts_prompts,
        )


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """The configuration of an engine's traces and events.

    otlp_traces_endpoint: the URL of an OpenTelemetry collector; None sends it nothing.
    log_name: the name of the engine in its lines of the log.
    """

    otlp_traces_endpoint: str | None = None
    enable_kv_cache_events: bool = False
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.TEXT
    log_name: str = "engine"


@dataclass(frozen=True, slots=True)
class SupervisionConfig:
    """The configuration of restarts after the end of an engine.

    max_engine_restarts: so many times within ten minutes another one is started.
    stuck_after_s: an engine that has work and does no step for so long is ended.
    engine_standby: a process with everything imported forks the engines, so that each is there
        sooner.
    """

    max_engine_restarts: int = 20
    stuck_after_s: float = 120.0
    engine_standby: bool = True


@dataclass(frozen=True, slots=True)
class RecordingConfig:
    """The configuration of the flight recorder.

    flight_recorder_minutes: how long what went into the scheduler is kept; 0 records nothing.
    flight_recorder_dir: the folder of the files that it is written to where an engine ends; None
        for one of its own among temporary files.
    """

    flight_recorder_minutes: float = 10.0
    flight_recorder_dir: str | None = None


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """The configuration of engines that serve one model together.

    data_parallel_size: so many engines, each with the whole model. On CPUs they divide threads and
        memory among them, of GPUs each has its own.
    """

    data_parallel_size: int = 1


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that an engine is built from. Each field of a group has the name of its flag, and
    no two groups have a field of one name. `data_parallel_rank` is the engine's number among those
    of its model. `ring_fd`, which a launch adds, is the memory of the flight recorder."""

    model: ModelConfig
    memory: MemoryConfig = MemoryConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    tracing: TracingConfig = TracingConfig()
    recording: RecordingConfig = RecordingConfig()
    parallel: ParallelConfig = ParallelConfig()
    data_parallel_rank: int = 0
    ring_fd: int | None = None

    @property
    def kv_options(self) -> KVOptions:
        """The options that the model's KV cache is built from."""
        return KVOptions(
            self.memory.kv_cache_dtype,
            hybrid=not self.memory.disable_hybrid_kv_cache_manager,
            attention=self.model.attention_backend,
            disabled=self.model.disable_optimizations,
        )

    def options(self) -> dict[str, object]:
        """Return the value of each option by its name, without the groups."""
        groups = (
            *(self.model, self.memory, self.scheduling),
            *(self.tracing, self.recording, self.parallel),
        )
        return {
            field.name: getattr(group, field.name)
            for group in groups
            for field in dataclasses.fields(group)
        }


def check_options(config: EngineConfig) -> None:
    """Check constraints that types cannot express, before anything is loaded. Raises ValueError,
    whose text names the flag."""
    memory, scheduling = config.memory, config.scheduling
    _ = memory.budget
    if config.model.tensor_parallel_size > 1:
        _check_ranks(config)
    if config.model.weights_cache_dir is not None and config.model.model == TOY_MODEL:
        raise ValueError("--weights-cache-dir does not go with the model toy, which has no weights")
    if (memory.prefix_cache_dir is None) != (memory.prefix_cache_bytes is None):
        raise ValueError("--prefix-cache-dir and --prefix-cache-bytes are given both or neither")
    if memory.prefix_cache_dir is not None and not memory.enable_prefix_caching:
        raise ValueError("--prefix-cache-dir does not go with --no-enable-prefix-caching")
    if memory.block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise ValueError(f"--block-size is {memory.block_size}, must be one of {sizes}")
    scheduling.scheduler_config(
        scheduling.max_num_batched_tokens or scheduling.max_num_seqs,
        scheduling.max_model_len or LEAST_MODEL_LEN,
    )


def _check_ranks(config: EngineConfig) -> None:
    """Raise ValueError for options that do not work with several ranks."""
    given = {
        "the model toy": config.model.model == TOY_MODEL,
        "--trust-remote-code": config.model.trust_remote_code,
        "--weights-cache-dir": config.model.weights_cache_dir is not None,
        "--prefix-cache-dir": config.memory.prefix_cache_dir is not None,
        "--kv-transfer-listen": config.memory.kv_transfer_listen is not None,
        "--kv-transfer-peer": bool(config.memory.kv_transfer_peers),
    }
    refused = next((name for name, is_given in given.items() if is_given), None)
    if refused is not None:
        raise ValueError(
            f"--tensor-parallel-size is {config.model.tensor_parallel_size}, which does not go "
            f"with {refused}: leave one of them out"
        )
