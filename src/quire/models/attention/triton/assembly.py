"""Assembly (PTX) that widens stored one-byte numbers, two at once: to a float16 or bfloat16 that is
the int8, or 2**-8 of the float8 e4m3. Ampere has all of it, and so have the GPUs since.
"""

from typing import NamedTuple


class Conversion(NamedTuple):
    """Turns two bytes of the register `x` into the two numbers of the register `{out}`. `is_low`:
    they are the lower bytes of the halves of `x`, otherwise the upper; the others may be any. The
    tables 0xea and 0x6a of `lop3` are (a & b) | c and (a & b) ^ c."""

    is_low: bool
    constants: str
    code: str


INT8_TO_BF16 = Conversion(
    True,
    "mov.b32 base, 0x43004300; mov.b32 minus, 0xbf80bf80;",
    """
    lop3.b32 y, x, 0x007f007f, base, 0xea;
    lop3.b32 z, x, 0x00800080, base, 0xea;
    fma.rn.bf16x2 {out}, z, minus, y;""",
)
"""0x43 before seven bits is 128 and what they say; off that, 256 where the sign is, or else 128."""
INT8_TO_FP16 = Conversion(
    True,
    "mov.b32 base, 0x64806480; mov.b32 minus, 0xe480e480;",
    """
    lop3.b32 y, x, 0x00ff00ff, base, 0x6a;
    add.rn.f16x2 {out}, y, minus;""",
)
"""0x64 before eight bits is 1024 and what they say; off that, 1152, since the sign is turned."""
E4M3_TO_BF16 = Conversion(
    False,
    "mov.b32 base, 0x77807780; mov.b32 minus, 0x80008000;",
    """
    and.b32 y, x, 0x80008000;
    shr.b32 z, x, 4;
    lop3.b32 y, z, 0x07f007f0, y, 0xea;
    fma.rn.bf16x2 {out}, y, base, minus;""",
)
"""Exponent and mantissa in the places of a bfloat16's are 2**-120 of the number, times 2**112."""
E4M3_TO_FP16 = Conversion(
    False,
    "",
    """
    and.b32 y, x, 0x80008000;
    shr.b32 z, x, 1;
    lop3.b32 {out}, z, 0x3f803f80, y, 0xea;""",
)


def neighbours(conversion: Conversion) -> str:
    """Return the assembly for four neighbouring bytes in $2: two in $0, and two in $1."""
    return _assembly(conversion, [("$2", "$2", pair, pair + 1) for pair in (0, 2)])


def words(conversion: Conversion) -> str:
    """Return the assembly for the words $4 and $5: their lowest bytes in $0, the next in $1."""
    return _assembly(conversion, [("$4", "$5", byte, 4 + byte) for byte in range(4)])


def _assembly(conversion: Conversion, outs: list[tuple[str, str, int, int]]) -> str:
    """Return the assembly whose n-th result is of two bytes of two registers, as `prmt` counts."""
    lines = [".reg .b32 x, y, z, base, minus;", conversion.constants]
    for index, (one, other, low, high) in enumerate(outs):
        selector = (high << 8 | low) << (0 if conversion.is_low else 4)
        lines.append(f"prmt.b32 x, {one}, {other}, {selector:#06x};")
        lines.append(conversion.code.format(out=f"${index}").strip())
    return "{\n" + "\n".join(lines) + "\n}"
