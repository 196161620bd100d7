"""Functions that read the one-byte numbers of `kv_codec`: elements and scales apart, since a scale
is of a whole key or value, and multiplies its score or its weight.

FORMAT: 0 as computed, 1 int8, 2 float8 e4m3. A float16 and a bfloat16 hold all of either exactly;
of an e4m3 they are given 2**-8, since its bits, shifted to where a float16 has its exponent and
mantissa, are that: subnormals too. The same is computed on every GPU, also on those that cannot
convert float8.
"""

import triton
import triton.language as tl

from quire.models.attention.triton import assembly

INT8_TO_BF16 = tl.constexpr(assembly.neighbours(assembly.INT8_TO_BF16))
INT8_TO_FP16 = tl.constexpr(assembly.neighbours(assembly.INT8_TO_FP16))
E4M3_TO_BF16 = tl.constexpr(assembly.neighbours(assembly.E4M3_TO_BF16))
E4M3_TO_FP16 = tl.constexpr(assembly.neighbours(assembly.E4M3_TO_FP16))
INT8_WORDS_TO_BF16 = tl.constexpr(assembly.words(assembly.INT8_TO_BF16))
INT8_WORDS_TO_FP16 = tl.constexpr(assembly.words(assembly.INT8_TO_FP16))
E4M3_WORDS_TO_BF16 = tl.constexpr(assembly.words(assembly.E4M3_TO_BF16))
E4M3_WORDS_TO_FP16 = tl.constexpr(assembly.words(assembly.E4M3_TO_FP16))
LEAST_SCALE = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def widen(kept, FORMAT: tl.constexpr, COMPUTE: tl.constexpr, IS_PACKED: tl.constexpr):
    """Return the numbers of the int8 `kept` in COMPUTE: exactly, but for their scales. IS_PACKED
    converts four at once, for which COMPUTE has 16 bits; an interpreter has no assembly."""
    if IS_PACKED and COMPUTE == tl.bfloat16:
        code: tl.constexpr = INT8_TO_BF16 if FORMAT == 1 else E4M3_TO_BF16
        return tl.inline_asm_elementwise(code, "=r,=r,r", [kept], tl.bfloat16, True, 4)
    elif IS_PACKED:
        code: tl.constexpr = INT8_TO_FP16 if FORMAT == 1 else E4M3_TO_FP16
        return tl.inline_asm_elementwise(code, "=r,=r,r", [kept], tl.float16, True, 4)
    elif FORMAT == 1:
        return kept.to(COMPUTE)
    else:
        bits = (kept.to(tl.int16) << 7) & -16512  # sign, and seven bits from the tenth down
        return bits.to(tl.float16, bitcast=True).to(COMPUTE)


@triton.jit
def widen_words(words, FORMAT: tl.constexpr, COMPUTE: tl.constexpr, IS_PACKED: tl.constexpr):
    """Return the numbers of the four bytes of the int32 `words`, as `widen` gives them: those of
    the lowest bytes first. IS_PACKED converts those of two words at once, which are of two keys
    where a product takes two keys at once, as it does of values."""
    if IS_PACKED and COMPUTE == tl.bfloat16:
        code: tl.constexpr = INT8_WORDS_TO_BF16 if FORMAT == 1 else E4M3_WORDS_TO_BF16
        kinds: tl.constexpr = (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16)
        return tl.inline_asm_elementwise(code, "=r,=r,=r,=r,r,r", [words], kinds, True, 2)
    elif IS_PACKED:
        code: tl.constexpr = INT8_WORDS_TO_FP16 if FORMAT == 1 else E4M3_WORDS_TO_FP16
        kinds: tl.constexpr = (tl.float16, tl.float16, tl.float16, tl.float16)
        return tl.inline_asm_elementwise(code, "=r,=r,=r,=r,r,r", [words], kinds, True, 2)
    else:
        first = widen((words << 24 >> 24).to(tl.int8), FORMAT, COMPUTE, False)
        second = widen((words << 16 >> 24).to(tl.int8), FORMAT, COMPUTE, False)
        third = widen((words << 8 >> 24).to(tl.int8), FORMAT, COMPUTE, False)
        fourth = widen((words >> 24).to(tl.int8), FORMAT, COMPUTE, False)
        return first, second, third, fourth


@triton.jit
def read_scales(scales, rows, seen, FORMAT: tl.constexpr, COPIES: tl.constexpr):
    """Return float32 [N]: what the numbers that `widen` gives of `rows` [N] are to be multiplied
    by; zeros for rows that are not `seen`, where None says that all are.

    With COPIES a thread each, N times COPIES of them, asks for a row, of which one reads it. The
    compiler would otherwise have every thread read all that it needs of so few, and find out
    where they lie: for a tile of many rows a third of all instructions.
    """
    if COPIES > 1:
        copy = tl.zeros([1, COPIES], tl.int32)
        is_mine = copy == 0 if seen is None else seen[:, None] & (copy == 0)
        found = tl.load(scales + rows[:, None] + copy, is_mine, 0)
        wide = tl.max(found.to(tl.float32), 1)
    elif seen is None:
        wide = tl.load(scales + rows).to(tl.float32)
    else:
        wide = tl.load(scales + rows, seen, 0).to(tl.float32)
    if FORMAT == 2:
        wide = wide * 256.0
    return wide


@triton.jit
def weigh(weights, fading, scales, peak, COMPUTE: tl.constexpr):
    """Return `weights` [rows, N] times the `scales` [N] of their values, `fading` of what is summed
    up so far, and `peak`, by which the sums are to be multiplied in the end.

    A float16 would not hold the products, and so is given 1 / `peak` of them, a power of two that
    is no less than any scale so far; it begins as LEAST_SCALE. With others it stays 1.
    """
    if COMPUTE == tl.float16:
        bits = tl.maximum(tl.max(scales, 0), peak).to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFFFF) & 0x7F800000
        part = (0x7F000000 - bits).to(tl.float32, bitcast=True)
        fading = fading * (peak * part)
        scales = scales * part
        peak = bits.to(tl.float32, bitcast=True)
    return weights * scales[None, :], fading, peak
