"""Lends the C++ kernels of an instruction set; where they cannot run, skips and says why.

The reasons are the same words everywhere, so that the line at the end of a run can count them.
"""

import pytest

from quire.models.native import Library, library

INSTRUCTIONS = {
    "avx2": "AVX2 and FMA",
    "avx512": "AVX-512 with bfloat16 and VNNI",
    "amx": "AMX",
}
"""What a CPU must have for each of ISAS, beyond what every CPU has."""
ISAS_WITH_PRODUCTS = ("avx512", "amx")
"""Those that multiply bfloat16 numbers and bytes."""


def built_library() -> Library:
    """The kernels that are used here."""
    built = library()
    if built is None:
        pytest.skip("the C++ kernels were not built")
    return built


def library_of(isa: str) -> Library:
    """The kernels of `isa`."""
    built = built_library()
    if isa not in built.isas:
        pytest.skip(f"this CPU lacks {INSTRUCTIONS[isa]}")
    return built.of(isa)


def library_with_products() -> Library:
    """The kernels that are used here, which multiply bfloat16 numbers and bytes."""
    built = built_library()
    return built if built.isa in ISAS_WITH_PRODUCTS else library_of(ISAS_WITH_PRODUCTS[0])
