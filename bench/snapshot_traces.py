"""Traces of conversations for `bench.snapshots`: prompts and outputs as token ids.

Mooncake's traces (arXiv 2407.00079) say of a prompt the ids of its blocks of 512 tokens; each is
one block of 16 tokens here, the rest of a prompt is left out, and its outputs are nobody's prompt.
The made trace has tenants with a system prompt each, and conversations whose prompts are all that
was said before: outputs are fed back, whole or without their beginning, as chat templates leave out
the reasoning of earlier turns.
"""

import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from bench.mooncake_trace import SCALE, read_trace

BLOCK_SIZE = 16
NUM_TENANTS, NUM_CONVERSATIONS, NUM_TURNS = 20, 3, 10
SYSTEM = 1500, 4000
USER = 200, 3000
OUTPUT = 100, 800
OPENING = 6
"""The tokens that open an answer's reasoning: they end a prompt, and no later prompt has them."""
START_S, PAUSE_S = 600.0, 30.0


class Turn(NamedTuple):
    """A request: its prompt, its output, and the conversation whose turns follow each other."""

    prompt: Sequence[int]
    output: Sequence[int]
    conversation: int


class TurnTrace(NamedTuple):
    """Turns in the order of their arrival. A token stands for `scale` tokens."""

    name: str
    turns: Sequence[Turn]
    scale: int = 1

    @property
    def num_distinct_blocks(self) -> int:
        """The number of blocks that hold all of it at once."""
        seen: set[int] = set()
        num = 0
        for turn in self.turns:
            digest = 0
            tokens = (*turn.prompt, *turn.output)
            for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
                digest = hash((digest, tokens[start : start + BLOCK_SIZE]))
                if digest not in seen:
                    seen.add(digest)
                    num += 1
        return num


def mooncake(name: str, path: Path, num_requests: int) -> TurnTrace:
    """Return a trace of Mooncake, of its first `num_requests` requests."""
    turns = []
    for index, prompt in enumerate(read_trace(path, num_requests)):
        tokens = [
            hash_id * BLOCK_SIZE + offset
            for hash_id in prompt.hash_ids
            for offset in range(BLOCK_SIZE)
        ]
        first = (1 << 31) + (index << 12)
        output = range(first + 1, first + 1 + prompt.num_outputs)
        turns.append(Turn((*tokens, first), output, index))
    return TurnTrace(name, turns, SCALE)


def tenants(name: str, *, keeps_reasoning: bool, seed: int = 0) -> TurnTrace:
    """Return the made trace; equal seeds give equal ones. Without its reasoning an output is fed
    back by its second half alone, and its prompt without the tokens that open the reasoning."""
    draw, fresh = random.Random(seed), count(1)

    def said(lengths: tuple[int, int]) -> list[int]:
        return [next(fresh) for _ in range(draw.randint(*lengths))]

    timed = []
    for tenant in range(NUM_TENANTS):
        system = said(SYSTEM)
        for number in range(NUM_CONVERSATIONS):
            history, now_s = list(system), draw.uniform(0, START_S)
            for _ in range(NUM_TURNS):
                history += said(USER)
                opening, output = [next(fresh) for _ in range(OPENING)], said(OUTPUT)
                turn = Turn((*history, *opening), output, tenant * NUM_CONVERSATIONS + number)
                timed.append((now_s, turn))
                kept = [*opening, *output] if keeps_reasoning else output[len(output) // 2 :]
                history += kept
                now_s += draw.expovariate(1 / PAUSE_S)
    timed.sort(key=lambda each: (each[0], each[1].conversation))
    return TurnTrace(name, [turn for _, turn in timed])
