"""Runs an operation of recurrent layers over sequences, whole or cut at random and in company."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire.cache.spec import StateSpec
from quire.cache.states.state_use import NULL_STATE
from quire.models.config import RecurrentLayer
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.state_store import build_state_store

Inputs = tuple[Tensor, ...]
"""The inputs of a sequence, each with a row for each token."""
Operation = Callable[[Inputs, Tensor, Pieces], Tensor]
"""Computes rows of outputs, and the states by pieces."""
STATES_EACH = 3
CPU = torch.device("cpu")


def make_pieces(cuts: Sequence[Sequence[tuple[int, int, int]]]) -> Pieces:
    """Return the pieces of a step: for each sequence its pieces as (tokens, read, write)."""
    flat = [piece for pieces in cuts for piece in pieces]

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return Pieces(
        starts=ints([0, *torch.tensor([tokens for tokens, _, _ in flat]).cumsum(0).tolist()]),
        reads=ints([read for _, read, _ in flat]),
        writes=ints([write for _, _, write in flat]),
        sequences=ints([0, *torch.tensor([len(pieces) for pieces in cuts]).cumsum(0).tolist()]),
    )


@dataclass(slots=True)
class Trace:
    """The findings about one sequence: the outputs of its tokens, and states by how many tokens lie
    before them."""

    outputs: list[Tensor] = field(default_factory=list)
    states: dict[int, Tensor] = field(default_factory=dict)


def run_alone(operation: Operation, inputs: Inputs, shape: tuple[int, ...]) -> Trace:
    """Run a sequence alone, a token a step."""
    states, trace = torch.zeros(2, *shape), Trace()
    for token in range(len(inputs[0])):
        pieces = make_pieces([[(1, 1 if token else NULL_STATE, 1)]])
        rows = tuple(each[token : token + 1] for each in inputs)
        trace.outputs.append(operation(rows, states, pieces)[0].clone())
        trace.states[token + 1] = states[1].clone()
    return trace


def run_cut(
    operation: Operation, sequences: Sequence[Inputs], shape: tuple[int, ...], rng: random.Random
) -> list[Trace]:
    """Run sequences side by side: each step has a random part of them, each of these a random
    number of tokens in random pieces, each piece writes a random state of its sequence's."""
    spec = StateSpec(((5,), shape, (2, 3)))
    store = build_state_store(
        [RecurrentLayer(7, spec)], 1 + STATES_EACH * len(sequences), device=CPU
    )
    store.rows[1:].fill_(float("nan"))  # of requests before
    states, traces = store.parts[7][1], [Trace() for _ in sequences]
    own = [range(1 + STATES_EACH * i, 1 + STATES_EACH * (i + 1)) for i in range(len(sequences))]
    current = [NULL_STATE for _ in sequences]
    while unfinished := [i for i, s in enumerate(sequences) if len(traces[i].outputs) < len(s[0])]:
        picked = rng.sample(unfinished, rng.randint(1, len(unfinished)))
        cuts: list[list[tuple[int, int, int]]] = []
        rows: list[Inputs] = []
        kept: dict[int, tuple[int, int]] = {}
        for i in picked:
            first = len(traces[i].outputs)
            end = rng.randint(first + 1, len(sequences[i][0]))
            rows.append(tuple(each[first:end] for each in sequences[i]))
            cuts.append([])
            while first < end:
                upto = rng.randint(first + 1, end)
                write = rng.choice(own[i])
                cuts[-1].append((upto - first, current[i], write))
                kept[write] = i, upto
                first, current[i] = upto, write
        packed = tuple(torch.cat(parts) for parts in zip(*rows, strict=True))
        outputs = operation(packed, states, make_pieces(cuts))
        sizes = [len(part[0]) for part in rows]
        for i, part in zip(picked, torch.split(outputs, sizes), strict=True):
            traces[i].outputs.extend(part.clone())
        for state_id, (i, upto) in kept.items():
            traces[i].states[upto] = states[state_id].clone()
    assert not store.rows[NULL_STATE].any()
    return traces


def is_same(found: Trace, expected: Trace) -> bool:
    """Return whether outputs and states are the same to the bit; `found` may have fewer states."""
    return torch.equal(torch.stack(found.outputs), torch.stack(expected.outputs)) and all(
        torch.equal(state, expected.states[end]) for end, state in found.states.items()
    )
