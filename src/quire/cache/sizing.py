"""Bytes to blocks: arithmetic only. Measuring a device is the engine's work."""


class TooLittleMemory(Exception):
    """The blocks that fit do not hold one request of the model length; the text has the numbers."""


def num_blocks_in(budget_bytes: int, block_bytes: int) -> int:
    """Whole blocks in the budget, the null block included; never negative."""
    return max(budget_bytes, 0) // block_bytes


def check_model_length_fits(
    num_blocks: int, *, block_size: int, block_bytes: int, max_model_len: int
) -> None:
    """Raise TooLittleMemory unless one request of `max_model_len` fits into the usable blocks."""
    needed = -(-max_model_len // block_size) + 1
    if num_blocks >= needed:
        return
    fitting = max(num_blocks - 1, 0) * block_size
    advice = f"pass --max-model-len {fitting}, or" if fitting > 1 else "give"
    raise TooLittleMemory(
        f"one request of --max-model-len {max_model_len} needs {needed} KV blocks "
        f"({needed * block_bytes / 2**20:.1f} MiB, block 0 included), but {num_blocks} "
        f"({num_blocks * block_bytes / 2**20:.1f} MiB) are available. "
        f"The largest model length that fits is {fitting}: {advice} more memory by "
        "--kv-cache-memory-bytes, --gpu-memory-utilization or --num-gpu-blocks-override"
    )
