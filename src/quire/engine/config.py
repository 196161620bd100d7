"""What an engine is built from. Values come from `server/cli.py`; nothing here reads the
environment.
"""

from dataclasses import dataclass

TOY_MODEL = "toy"
"""As `model`: the deterministic model of the tests; it needs no checkpoint."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`None` means: decided from the model and the device, and said in the memory receipt.

    `device` is auto, cpu, cuda or cuda:N; `dtype` auto, float32, float16 or bfloat16. KV memory is
    `num_gpu_blocks_override` blocks if given, else `kv_cache_memory_bytes` if given, else the share
    `gpu_memory_utilization` of the device's memory less what the loaded model uses.
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
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int = 1024
    enable_prefix_caching: bool = True
