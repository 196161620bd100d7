"""Chooses the number format that a model computes in."""

import logging
import platform

import torch

from quire.models.config import ModelDtype

logger = logging.getLogger(__name__)

DTYPES = {
    ModelDtype.FLOAT32: torch.float32,
    ModelDtype.FLOAT16: torch.float16,
    ModelDtype.BFLOAT16: torch.bfloat16,
}
HALVES = (torch.float16, torch.bfloat16)


def choose_dtype(
    requested: ModelDtype, stored: torch.dtype | None, device: torch.device
) -> torch.dtype | None:
    """Return the dtype to compute in, or None for that of the stored weights.

    Weights stored in float32 run in bfloat16 where `device` multiplies it fast, and a CPU computes
    in half precision only there.
    """
    if requested is not ModelDtype.AUTO:
        return DTYPES[requested]
    if stored == torch.float32 or (stored in HALVES and device.type == "cpu"):
        return torch.bfloat16 if _has_fast_bfloat16(device) else torch.float32
    return stored


def log_dtype(stored: torch.dtype | None, chosen: torch.dtype | None, device: str) -> None:
    """Log if the compute dtype differs from the stored one."""
    if stored is None or chosen in (None, stored):
        return
    was, runs = (str(each).removeprefix("torch.") for each in (stored, chosen))
    logger.info(
        "weights stored in %s run in %s on this %s; --dtype %s keeps %s",
        *(was, runs, device.upper(), was, was),
    )


def _has_fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return cpu_has_fast_bfloat16()


def cpu_has_fast_bfloat16() -> bool:
    """Return whether oneDNN multiplies bfloat16 fast. On x86 it claims so wherever there is
    AVX-512, but without a bfloat16 dot product it takes several times as long as for float32."""
    if not torch._C._has_mkldnn or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return not is_x86 or bool(torch.cpu._is_avx512_bf16_supported())
