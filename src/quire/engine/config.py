"""The configuration of an engine. Values come from `server/cli/commands.py`; nothing here reads
the environment.
"""

from dataclasses import dataclass

from quire.cache.block_hash import HashAlgorithm
from quire.cache.sizing import BLOCK_SIZES, DEFAULT_SHARE, Budget
from quire.models.config import ATTENTION_BACKENDS as ATTENTION_BACKENDS
from quire.models.config import LINEAR_BACKENDS as LINEAR_BACKENDS
from quire.models.config import QUANTISED, KVOptions
from quire.models.config import QUANTIZATIONS as QUANTIZATIONS
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName

TOY_MODEL = "toy"
"""The name of the deterministic model of the tests, which needs no checkpoint."""

KV_DTYPES = ("auto", *QUANTISED)
HASH_ALGORITHMS = tuple(map(str, HashAlgorithm))


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that an engine is built from; each field has the name of its flag.

    `None` means that the value is derived from the model and the device and printed in the memory
    receipt.

    device: auto, cpu, cuda or cuda:N.
    dtype: auto (as stored, but bfloat16 for float32 where the device multiplies it), float32,
        float16 or bfloat16.
    num_gpu_blocks_override, kv_cache_memory_bytes, kv_cache_tokens, gpu_memory_utilization: KV
        memory in blocks, bytes, tokens of context, or as the share of the device that the model
        and KV take together; at most one of them.
    swap_space: host memory for swapped blocks, in GiB.
    preemption_mode: auto, swap or recompute.
    kv_cache_dtype: auto (as the model computes), fp8_e4m3 or int8.
    attention_backend: auto, cpu, triton, reference or eager.
    quantization: none or int8, the format of the weights.
    prefix_caching_seed: makes the digests of blocks the same in every process.
    """

    model: str
    revision: str | None = None
    trust_remote_code: bool = False
    device: str = "auto"
    dtype: str = "auto"
    num_threads: int | None = None
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    swap_space: float | None = None
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    kv_cache_dtype: str = "auto"
    disable_hybrid_kv_cache_manager: bool = False
    attention_backend: str = "auto"
    linear_backend: str = "auto"
    quantization: str = "none"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int = 1024
    scheduling_policy: PolicyName = PolicyName.FCFS
    priority_ageing_s: float = 30.0
    max_skips: int = 16
    wait_for_prefix: bool = True
    enable_prefix_caching: bool = True
    async_scheduling: bool | None = None
    enforce_eager: bool = False
    otlp_traces_endpoint: str | None = None
    prefix_caching_hash_algo: str = "sha256"
    prefix_caching_seed: str | None = None
    enable_kv_cache_events: bool = False
    log_level: str = "info"

    @property
    def budget(self) -> Budget:
        """The budget of KV memory. Raises ValueError if it is given in two ways."""
        return Budget(
            self.num_gpu_blocks_override,
            self.kv_cache_memory_bytes,
            self.kv_cache_tokens,
            self.gpu_memory_utilization,
        )

    @property
    def kv_options(self) -> KVOptions:
        """The options that the model's KV cache is built from."""
        return KVOptions(
            self.kv_cache_dtype,
            hybrid=not self.disable_hybrid_kv_cache_manager,
            attention=self.attention_backend,
        )

    @property
    def memory_share(self) -> float:
        """`gpu_memory_utilization`, or its default."""
        share = self.gpu_memory_utilization
        return DEFAULT_SHARE if share is None else share


def check_memory_options(config: EngineConfig) -> None:
    """Check options before anything is loaded. Raises ValueError, whose text names the option."""
    _ = config.budget
    if config.block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise ValueError(f"--block-size is {config.block_size}, must be one of {sizes}")
    for option, value, allowed in (
        ("--kv-cache-dtype", config.kv_cache_dtype, KV_DTYPES),
        ("--attention-backend", config.attention_backend, ATTENTION_BACKENDS),
        ("--linear-backend", config.linear_backend, LINEAR_BACKENDS),
        ("--quantization", config.quantization, QUANTIZATIONS),
        ("--prefix-caching-hash-algo", config.prefix_caching_hash_algo, HASH_ALGORITHMS),
    ):
        if value not in allowed:
            raise ValueError(f"{option} is {value}, must be one of {', '.join(allowed)}")
