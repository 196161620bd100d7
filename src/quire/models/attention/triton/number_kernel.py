"""Functions that encode the one-byte numbers of `kv_codec` by their bits. They give the same on
every GPU, also on those that cannot convert float8, and what the codec gives, to the bit.

FORMAT: 1 int8, 2 float8 e4m3.
"""

import triton
import triton.language as tl


@triton.jit
def choose_scale(tensor, PEAK: tl.constexpr):
    """Return the scale of each row of float32 `tensor`, as the int32 bits of a bfloat16: the
    largest absolute value / PEAK, rounded up.

    The bits of positive floats, read as integers, count upwards with them, and those of a NaN are
    above all: so the largest bits are those of amax, or of a NaN if there is one.
    """
    bits = tensor.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    amax = tl.max(bits, 1).to(tl.float32, bitcast=True)
    exact = tl.div_rn(amax, tl.zeros_like(amax) + PEAK)
    exact = tl.where(exact < 1.1754943508222875e-38, 1.1754943508222875e-38, exact)
    is_number = exact == exact
    bits = tl.where(is_number, exact, 1.0).to(tl.int32, bitcast=True)
    return tl.where(is_number, (bits + 0xFFFF) >> 16, 0x7FC0)


@triton.jit
def encode(tensor, scale, FORMAT: tl.constexpr, PEAK: tl.constexpr):
    """Return float32 `tensor` [N, columns] over `scale` [N, 1] as the int8 that is kept. Numbers
    are rounded to the nearest, to even between two: adding a large number does that, since the sum
    has no bits for more."""
    number = tl.div_rn(tensor, tl.zeros_like(tensor) + scale)
    number = tl.where(number > PEAK, PEAK, tl.where(number < -PEAK, -PEAK, number))
    number = tl.where(number == number, number, 0.0)
    if FORMAT == 1:
        return ((number + 12582912.0) - 12582912.0).to(tl.int8)
    bits = number.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    sum_bits = (tl.abs(number) + 16384.0).to(tl.int32, bitcast=True)
    subnormal = sum_bits - 0x46800000
    small = tl.where(size < 0x3C800000, subnormal, normal)
    return (small | ((bits >> 24) & 0x80)).to(tl.int8)
