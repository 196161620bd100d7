"""Measures what quantised weights cost in perplexity and save in bytes, on real weights and text.

python -m bench.quantization_quality --model MODEL_DIR --text FILE [--max-tokens 4000]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.perplexity import encode, perplexity
from quire.engine.config import (
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    SchedulingConfig,
)
from quire.models.config import Quantization

KV_BYTES = 1 << 26


class Quality(NamedTuple):
    """`weight_bytes`: of the whole model, what is not quantised among it."""

    quantization: Quantization
    perplexity: float
    weight_bytes: int


def measure(model_dir: Path, token_ids: Sequence[int], quantization: Quantization) -> Quality:
    """Score `token_ids`, the model computing as `--dtype auto` has it."""
    config = EngineConfig(
        ModelConfig(str(model_dir), device="cpu", quantization=quantization),
        memory=MemoryConfig(kv_cache_memory_bytes=KV_BYTES, enable_prefix_caching=False),
        scheduling=SchedulingConfig(max_num_seqs=4),
    )
    found, facts = perplexity(config, [token_ids])
    weight_bytes = next(line.num_bytes for line in facts.receipt if line.kind == "weights")
    return Quality(quantization, found, weight_bytes)


def table(model: str, found: Sequence[Quality]) -> str:
    """One line for each, against the first."""
    plain = found[0]
    lines = [model]
    for each in found:
        change = each.perplexity / plain.perplexity - 1
        share = each.weight_bytes / plain.weight_bytes
        lines.append(
            f"  {each.quantization:5} perplexity {each.perplexity:9.4f} ({change:+8.3%})   "
            f"{each.weight_bytes / 2**20:9.2f} MiB of weights ({share:.2f}x)"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.quantization_quality", description=__doc__
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=4000)
    args = parser.parse_args()
    token_ids = encode(args.model, args.text.read_text(encoding="utf-8"))[: args.max_tokens]
    found = [measure(args.model, token_ids, quantization) for quantization in Quantization]
    print(table(args.model.name, found))


if __name__ == "__main__":
    main()
