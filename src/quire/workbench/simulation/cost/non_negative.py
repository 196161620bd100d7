"""Least squares whose solution has no negative part."""

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-10
"""The gradient, relative to the largest there was, that counts as none."""


def non_negative_least_squares(
    rows: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the x >= 0 [num_columns] for which |rows @ x - values| is least.

    rows: [num_rows, num_columns]. values: [num_rows].
    The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23);
    columns are scaled to unit length first, so that their units do not matter.
    """
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    scaled = rows / scale
    num_columns = scaled.shape[1]
    found = np.zeros(num_columns)
    free = np.zeros(num_columns, dtype=bool)
    gradient = scaled.T @ values
    least = TOLERANCE * max(float(np.abs(gradient).max(initial=0.0)), 1e-300)
    for _ in range(3 * num_columns):
        candidates = np.where(free, -np.inf, gradient)
        if free.all() or candidates.max() <= least:
            break
        free[int(candidates.argmax())] = True
        found = _step_within(scaled, values, found, free)
        gradient = scaled.T @ (values - scaled @ found)
    solution: NDArray[np.float64] = found / scale
    return solution


def _step_within(
    rows: NDArray[np.float64],
    values: NDArray[np.float64],
    found: NDArray[np.float64],
    free: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return the solution in the `free` columns; those that would turn negative are freed no more,
    which changes `free`."""
    while True:
        tried = np.zeros_like(found)
        tried[free] = np.linalg.lstsq(rows[:, free], values, rcond=None)[0]
        negative = free & (tried <= 0)
        if not negative.any():
            return tried
        steps = found[negative] / np.maximum(found[negative] - tried[negative], 1e-300)
        found = found + float(steps.min()) * (tried - found)
        free &= found > 1e-15
        found[~free] = 0.0
