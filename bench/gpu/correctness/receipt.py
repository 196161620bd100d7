"""The memory that a start and its largest steps take, against the memory receipt."""

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

from bench.gpu.check import Finding, Place
from bench.gpu.correctness.small_models import texts_of
from bench.in_process import build_quietly
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts
from quire.models.config import LinearBackend, ModelDtype

MIB = 1 << 20
LIBRARY_BYTES = 512 * MIB
"""Memory of the driver and of libraries that the receipt does not list: modules of kernels, and
workspaces of matrix products."""
NUM_NEW = 8


def check_receipt(place: Place) -> Iterator[Finding]:
    """Weights and KV are what arithmetic says, and steps take no more than was kept for them."""
    config = _config(place)
    folder = place.folder / "receipt"
    weight_bytes = _make_checkpoint(config, folder)
    before = _used_bytes(place.device)
    engine, facts = _build(folder, place)
    receipt = {line.kind: line.num_bytes for line in facts.receipt}
    yield _equal("weights", receipt["weights"], weight_bytes)
    yield _equal("kv", receipt["kv"], facts.num_blocks * _block_bytes(config, facts))
    if place.device.type == "cuda":
        yield from _check_peaks(engine, facts, receipt, before)


def _config(place: Place) -> LlamaConfig:
    hidden, layers, vocab = (64, 2, 512) if place.is_rehearsal else (1024, 8, 32000)
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 16,
        num_key_value_heads=hidden // 32,
        vocab_size=vocab,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )


def _make_checkpoint(config: LlamaConfig, folder: Path) -> int:
    """Return the bytes of the weights as the files have them."""
    torch.manual_seed(0)
    torch.nn.Module.to(LlamaForCausalLM(config), torch.bfloat16).save_pretrained(folder)
    found = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as weights:
            found += sum(weights.get_tensor(name).nbytes for name in weights.keys())
    return found


def _build(folder: Path, place: Place) -> tuple[Engine, EngineFacts]:
    memory = MemoryConfig(kv_cache_tokens=4096 if place.is_rehearsal else 64 * 2048)
    scheduling = SchedulingConfig(max_model_len=256 if place.is_rehearsal else 2048)
    model = ModelConfig(
        str(folder),
        device=str(place.device),
        dtype=ModelDtype.BFLOAT16,
        linear_backend=LinearBackend.TORCH,  # a CPU's other one packs weights
    )
    return build_quietly(EngineConfig(model, memory, scheduling))


def _block_bytes(config: LlamaConfig, facts: EngineFacts) -> int:
    """Return the bytes of K and V of a block in all layers, in bfloat16."""
    width = config.hidden_size // config.num_attention_heads
    num_kv_heads = config.num_key_value_heads or config.num_attention_heads
    return facts.block_size * 2 * config.num_hidden_layers * num_kv_heads * width * 2


def _equal(what: str, said: int, counted: int) -> Finding:
    figures = {"receipt_bytes": said, "counted_bytes": counted}
    is_right = math.isclose(said, counted, rel_tol=0.01)
    return Finding(what, figures, None if is_right else "the receipt says otherwise")


def _check_peaks(
    engine: Engine, facts: EngineFacts, receipt: dict[str, int], before: int
) -> Iterator[Finding]:
    """Compute prefills that fill the token budget, then decode steps of all requests."""
    torch.cuda.reset_peak_memory_stats()
    length = facts.max_model_len - NUM_NEW
    prompts = [[5 + index % 97] * length for index in range(facts.max_num_seqs)]
    texts_of(engine, prompts, NUM_NEW)
    listed = sum(receipt[kind] for kind in ("weights", "kv", "activation", "scratch", "graphs"))
    peak = torch.cuda.max_memory_reserved()
    figures = {"receipt_bytes": listed, "torch_peak_bytes": peak}
    fault = None if peak <= listed else "torch took more than was kept for it"
    yield Finding("steps", figures, fault)
    used = _used_bytes(torch.device("cuda")) - before
    figures = {"receipt_bytes": listed, "driver_bytes": used}
    fault = None if used <= listed + LIBRARY_BYTES else "the process takes more than it says"
    yield Finding("process", figures, fault)


def _used_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free
