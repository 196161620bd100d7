"""What rounding may change, from the arithmetic: how many roundings, of which dtype, of how much.

An operation's result is off by at most the unit roundoff u of its dtype, relative. In a sum of n
products each goes through at most n roundings, whatever their order, and so the sum is off by at
most n u / (1 - n u) of the sum of absolute products (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 3.1). Roundings go either way, and LAMBDA sqrt(n) stands in for n where it
is less: then the bound fails with a chance of at most 2 exp(-LAMBDA^2 / 2), 3e-8, even if every
rounding was as large as can be and of the whole sum (Higham and Mary, SIAM Journal on Scientific
Computing 41-5, 2019, theorem 2.4). Either holds for fused and for separate products and additions,
in vectors of any width, and so on every machine.
"""

LAMBDA = 6.0
DOUBLE = 2.0**-53
"""The unit roundoff of Python's floats."""


def compounded(num_roundings: float, u: float = DOUBLE) -> float:
    """What that many roundings of u each change at most, one after another: relative."""
    return num_roundings * u / (1 - num_roundings * u)
