"""The assembly that widens one-byte numbers, carried out by a naive reading of PTX, for all bytes.

No interpreter runs it, and no GPU is at hand: so the operations that it uses are done here as the
PTX manual has them.
"""

import re
from collections.abc import Callable

import pytest
import torch

from quire.models.attention.triton import assembly
from quire.models.attention.triton.assembly import Conversion

BYTES = torch.arange(-128, 128, dtype=torch.int8)
MASK = 0xFFFFFFFF
CASES = {
    "int8, bfloat16": (assembly.INT8_TO_BF16, torch.int8, torch.bfloat16),
    "int8, float16": (assembly.INT8_TO_FP16, torch.int8, torch.float16),
    "e4m3, bfloat16": (assembly.E4M3_TO_BF16, torch.float8_e4m3fn, torch.bfloat16),
    "e4m3, float16": (assembly.E4M3_TO_FP16, torch.float8_e4m3fn, torch.float16),
}


def prmt(one: int, other: int, selector: int) -> int:
    taken = (one | other << 32).to_bytes(8, "little")
    chosen = bytes(taken[selector >> 4 * place & 7] for place in range(4))
    return int.from_bytes(chosen, "little")


def lop3(a: int, b: int, c: int, table: int) -> int:
    places = ((a >> n & 1) << 2 | (b >> n & 1) << 1 | c >> n & 1 for n in range(32))
    return sum((table >> place & 1) << n for n, place in enumerate(places))


def pair(number: int, dtype: torch.dtype) -> torch.Tensor:
    """The two numbers of a register, in float64, in which products and sums of them are exact."""
    halves = torch.tensor([number & 0xFFFF, number >> 16], dtype=torch.int32)
    return halves.to(torch.uint16).view(dtype).double()


def packed(numbers: torch.Tensor, dtype: torch.dtype) -> int:
    low, high = numbers.to(dtype).view(torch.uint16).tolist()
    return int(low | high << 16)


OPERATIONS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "shr.b32": lambda a, b: a >> b,
    "lop3.b32": lop3,
    "prmt.b32": prmt,
    "add.rn.f16x2": lambda a, b: packed(
        pair(a, torch.float16) + pair(b, torch.float16), torch.float16
    ),
    "fma.rn.bf16x2": lambda a, b, c: packed(
        pair(a, torch.bfloat16) * pair(b, torch.bfloat16) + pair(c, torch.bfloat16), torch.bfloat16
    ),
}


def run(code: str, **registers: int) -> dict[str, int]:
    """The registers after `code`; none is read before it is written."""
    for operation, operands in re.findall(r"([\w.]+) ([^;{}]+);", code):
        if operation != ".reg":
            to, *sources = operands.split(", ")
            values = [registers[each] if each in registers else int(each, 0) for each in sources]
            registers[to] = OPERATIONS[operation](*values) & MASK
    return registers


def word(bytes_: torch.Tensor) -> int:
    return int(bytes_.view(torch.int32)) & MASK


def wanted(kept: torch.Tensor, number: torch.dtype) -> torch.Tensor:
    """As `widen` says: the numbers, or 2**-8 of those that are e4m3. The codec writes no NaN,
    whose bits are those of a larger number here."""
    if number is torch.int8:
        return kept.double()
    numbers = kept.view(number).double() / 256
    return torch.where(numbers.isnan(), torch.where(kept < 0, -480.0, 480.0) / 256, numbers)


@pytest.mark.parametrize("case", CASES)
def test_neighbouring_bytes_become_their_numbers(case: str) -> None:
    conversion, number, dtype = CASES[case]
    code = assembly.neighbours(conversion)
    for four in BYTES.view(-1, 4):
        done = run(code, **{"$2": word(four)})
        found = torch.cat([pair(done["$0"], dtype), pair(done["$1"], dtype)])
        assert torch.equal(found, wanted(four, number))


@pytest.mark.parametrize("case", CASES)
def test_words_of_two_keys_become_the_numbers_of_four_columns(case: str) -> None:
    conversion, number, dtype = CASES[case]
    code = assembly.words(conversion)
    for one, other in zip(BYTES.view(-1, 4), BYTES.flip(0).view(-1, 4), strict=True):
        done = run(code, **{"$4": word(one), "$5": word(other)})
        found = torch.stack([pair(done[f"${column}"], dtype) for column in range(4)])
        assert torch.equal(found.T, wanted(torch.stack([one, other]), number))


def test_a_wrong_constant_shows() -> None:
    wrong = assembly.INT8_TO_BF16._replace(
        constants=assembly.INT8_TO_BF16.constants.replace("4300", "4380")
    )
    assert isinstance(wrong, Conversion)
    done = run(assembly.neighbours(wrong), **{"$2": 0x01020304})
    assert pair(done["$0"], torch.bfloat16).tolist() != [4.0, 3.0]
