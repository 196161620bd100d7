"""Measures what a quantised KV cache costs in perplexity and gains in blocks, on real weights and
text.

    python -m bench.kv_quality --model MODEL_DIR --text FILE [--max-tokens 4000]

The text is scored through the whole engine in pieces of the model's context, each cut into chunks
of 64 tokens, so that nearly every token attends to K and V that have been stored.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.perplexity import encode, perplexity
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.models.config import KVCacheDtype, ModelDtype

CHUNK = 64
MEMORY_BYTES = 1 << 26


class Quality(NamedTuple):
    """`num_blocks` is what MEMORY_BYTES of KV memory hold."""

    dtype: KVCacheDtype
    perplexity: float
    num_blocks: int


def measure(model_dir: Path, token_ids: Sequence[int], dtype: KVCacheDtype) -> Quality:
    """Score `token_ids` with K and V kept in `dtype`, the model itself in float32."""
    config = EngineConfig(
        ModelConfig(str(model_dir), device="cpu", dtype=ModelDtype.FLOAT32),
        memory=MemoryConfig(
            kv_cache_dtype=dtype, kv_cache_memory_bytes=MEMORY_BYTES, enable_prefix_caching=False
        ),
        scheduling=SchedulingConfig(max_num_seqs=4, max_num_batched_tokens=CHUNK),
    )
    found, facts = perplexity(config, [token_ids])
    return Quality(dtype, found, facts.num_blocks)


def table(model: str, found: Sequence[Quality]) -> str:
    """One line for each dtype, against the first."""
    plain = found[0]
    lines = [f"{model}, {MEMORY_BYTES >> 20} MiB of KV"]
    for each in found:
        change = each.perplexity / plain.perplexity - 1
        lines.append(
            f"  {each.dtype:9} perplexity {each.perplexity:9.4f} ({change:+8.3%})   "
            f"{each.num_blocks:7} blocks ({each.num_blocks / plain.num_blocks:.2f}x)"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kv_quality", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=4000)
    args = parser.parse_args()
    token_ids = encode(args.model, args.text.read_text(encoding="utf-8"))[: args.max_tokens]
    print(table(args.model.name, [measure(args.model, token_ids, dtype) for dtype in KVCacheDtype]))


if __name__ == "__main__":
    main()
