"""The types that a tensor of a GGUF file may have: blocks of numbers that share their scales.

Source of the numbers: `ggml.h` and `ggml-common.h` of https://github.com/ggml-org/llama.cpp, which
the package `gguf` repeats.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class GgmlType(NamedTuple):
    """A type by its number in the file. A block holds `block_size` numbers in `block_bytes`. One
    that `is_read` is served; others are refused by name."""

    id: int
    name: str
    block_size: int
    block_bytes: int
    is_read: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether each number stands for itself."""
        return self.block_size == 1


_ALL = (
    GgmlType(0, "F32", 1, 4, is_read=True),
    GgmlType(1, "F16", 1, 2, is_read=True),
    GgmlType(2, "Q4_0", 32, 18, is_read=True),
    GgmlType(3, "Q4_1", 32, 20, is_read=True),
    GgmlType(6, "Q5_0", 32, 22, is_read=True),
    GgmlType(7, "Q5_1", 32, 24, is_read=True),
    GgmlType(8, "Q8_0", 32, 34, is_read=True),
    GgmlType(9, "Q8_1", 32, 36),
    GgmlType(10, "Q2_K", 256, 84, is_read=True),
    GgmlType(11, "Q3_K", 256, 110, is_read=True),
    GgmlType(12, "Q4_K", 256, 144, is_read=True),
    GgmlType(13, "Q5_K", 256, 176, is_read=True),
    GgmlType(14, "Q6_K", 256, 210, is_read=True),
    GgmlType(15, "Q8_K", 256, 292),
    GgmlType(16, "IQ2_XXS", 256, 66),
    GgmlType(17, "IQ2_XS", 256, 74),
    GgmlType(18, "IQ3_XXS", 256, 98),
    GgmlType(19, "IQ1_S", 256, 50),
    GgmlType(20, "IQ4_NL", 32, 18, is_read=True),
    GgmlType(21, "IQ3_S", 256, 110),
    GgmlType(22, "IQ2_S", 256, 82),
    GgmlType(23, "IQ4_XS", 256, 136, is_read=True),
    GgmlType(24, "I8", 1, 1),
    GgmlType(25, "I16", 1, 2),
    GgmlType(26, "I32", 1, 4),
    GgmlType(27, "I64", 1, 8),
    GgmlType(28, "F64", 1, 8),
    GgmlType(29, "IQ1_M", 256, 56),
    GgmlType(30, "BF16", 1, 2, is_read=True),
    GgmlType(34, "TQ1_0", 256, 54),
    GgmlType(35, "TQ2_0", 256, 66),
    GgmlType(39, "MXFP4", 32, 17, is_read=True),
    GgmlType(40, "NVFP4", 64, 36),
    GgmlType(41, "Q1_0", 128, 18),
)
GGML_TYPES: Mapping[int, GgmlType] = MappingProxyType({each.id: each for each in _ALL})
