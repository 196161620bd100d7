"""The kernels of recurrent layers: near their twin in torch, within what rounding explains, and the
same to the bit however sequences are cut and whatever is beside them."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from tests.models.recurrent.cuts import Inputs, make_pieces
from tests.models.recurrent.random_operations import (
    RandomOperation,
    convolution,
    delta_net,
    delta_rule,
    selective_scan,
    state_space,
)
from torch import Tensor

from bench.gpu.check import Finding, Place
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.reference.kernels import ReferenceKernels
from quire.models.recurrent.triton.kernels import TritonRecurrentKernels

OPERATIONS = {
    "convolution, 6144 x 4": convolution(6144, 4, has_bias=True, is_activated=True),
    "convolution, 1000 x 3": convolution(1000, 3, has_bias=False, is_activated=False),
    "delta rule, 128 x 128": delta_rule(2, 4, 128, 128, by_channel=False),
    "delta rule by channel, 128 x 128": delta_rule(3, 3, 128, 128, by_channel=True),
    "delta rule, 256 x 200": delta_rule(1, 2, 256, 200, by_channel=False),
    "delta net, 128 x 128": delta_net(2, 4, 128, 128, width=4, is_wide=True),
    "state space, 64 x 128": state_space(1, 5, 64, 128, has_skip=True),
    "state space, 60 x 250": state_space(2, 4, 60, 250, has_skip=False),
    "selective scan, 1536 x 16": selective_scan(1536, 16, has_skip=True),
    "selective scan, 100 x 7": selective_scan(100, 7, has_skip=True),
}
REHEARSED = {
    "convolution, 20 x 4": convolution(20, 4, has_bias=True, is_activated=True),
    "delta net, 8 x 5": delta_net(1, 2, 8, 5, width=4, is_wide=True),
    "state space, 5 x 8": state_space(1, 2, 5, 8, has_skip=True),
}
LENGTHS, REHEARSED_LENGTHS = (37, 1, 100, 5), (7, 1, 4)
HALF_EPS = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
EXPONENTIALS = 8
"""A GPU's exponentials and roots are less exact than those of a CPU: so many times the error."""
KERNELS = TritonRecurrentKernels()


@torch.inference_mode()
def check_recurrent(place: Place) -> Iterator[Finding]:
    """Each operation in each dtype."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    operations = REHEARSED if place.is_rehearsal else OPERATIONS
    lengths = REHEARSED_LENGTHS if place.is_rehearsal else LENGTHS
    for name, operation in operations.items():
        for dtype in dtypes[:1] if place.is_rehearsal else dtypes:
            generator = torch.Generator().manual_seed(1)
            sequences = [operation.draw(length, dtype, generator) for length in lengths]
            what = f"{name}, {str(dtype).removeprefix('torch.')}"
            yield _near_twin(what, operation, sequences[0], place)
            yield _same_bits(what, operation, sequences, place)


def _near_twin(what: str, operation: RandomOperation, inputs: Inputs, place: Place) -> Finding:
    dtype, num_tokens = inputs[0].dtype, len(inputs[0])
    pieces, states = make_pieces([[(num_tokens, 0, 1)]]), torch.zeros(2, *operation.state_shape)
    theirs = states.to(place.device, copy=True)
    expected = operation.apply(ReferenceKernels(), inputs, states, pieces)
    found = _apply(operation, inputs, theirs, pieces, place).cpu()
    size = max(1.0, *(float(each.abs().max()) for each in (*inputs, states, expected)))
    allowed = EXPONENTIALS * operation.relative_error(num_tokens, dtype) * size**2
    of_state = float((theirs.cpu() - states).abs().max()) / allowed
    allowed += 2 * HALF_EPS[dtype] * size
    of_output = float((found.float() - expected.float()).abs().max()) / allowed
    worst = max(of_state, of_output)
    fault = None if worst <= 1 else f"{worst:.3g} times as far off as rounding explains"
    return Finding(f"{what}, beside its twin", {"of_allowed_error": worst}, fault)


def _same_bits(
    what: str, operation: RandomOperation, sequences: Sequence[Inputs], place: Place
) -> Finding:
    """Compute each sequence alone, a token a step, and all together in two steps of pieces."""
    alone = [_alone(operation, inputs, place) for inputs in sequences]
    states = torch.full((1 + 2 * len(sequences), *operation.state_shape), torch.nan)
    states[0] = 0
    states = states.to(place.device)
    outputs: list[list[Tensor]] = [[] for _ in sequences]
    for is_first in (True, False):
        parts, cuts = [], list[list[tuple[int, int, int]]]()
        for index, inputs in enumerate(sequences):
            middle, (one, other) = len(inputs[0]) // 2, (1 + 2 * index, 2 + 2 * index)
            rows = slice(0, middle) if is_first else slice(middle, None)
            parts.append(tuple(each[rows] for each in inputs))
            size, read = len(parts[-1][0]), 0 if is_first or not middle else one
            cuts.append([(size // 3, read, other)] if size >= 3 else [])
            rest = size - size // 3 if size >= 3 else size
            cuts[-1] += [(rest, other if size >= 3 else read, one)] if rest else []
        packed = tuple(torch.cat(each) for each in zip(*parts, strict=True))
        found = _apply(operation, packed, states, make_pieces(cuts), place)
        sizes = [len(each[0]) for each in parts]
        for own, part in zip(outputs, torch.split(found, sizes), strict=True):
            own.append(part)
    are_same = all(
        torch.equal(torch.cat(own), out) and torch.equal(states[1 + 2 * index], state)
        for index, (own, (out, state)) in enumerate(zip(outputs, alone, strict=True))
    )
    fault = None if are_same else "bits depend on how sequences are cut, or on company"
    return Finding(f"{what}, to the bit", {"sequences": len(sequences)}, fault)


def _alone(operation: RandomOperation, inputs: Inputs, place: Place) -> tuple[Tensor, Tensor]:
    """Return the outputs and the last state of a sequence, computed a token a step."""
    states = torch.zeros(2, *operation.state_shape, device=place.device)
    step = partial(_apply, operation, states=states, place=place)
    rows = [tuple(each[t : t + 1] for each in inputs) for t in range(len(inputs[0]))]
    outputs = [step(row, pieces=make_pieces([[(1, int(t > 0), 1)]])) for t, row in enumerate(rows)]
    return torch.cat(outputs), states[1]


def _apply(
    operation: RandomOperation, inputs: Inputs, states: Tensor, pieces: Pieces, place: Place
) -> Tensor:
    """Compute an operation whose inputs are on the CPU."""
    there = tuple(each.to(place.device) for each in inputs)
    moved = (pieces.starts, pieces.reads, pieces.writes, pieces.sequences)
    on_device = Pieces(*(each.to(place.device) for each in moved))
    return operation.apply(KERNELS, there, states, on_device)
