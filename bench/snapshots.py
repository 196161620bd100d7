"""Compares where snapshots of states are taken, by the tokens of prompts that are found.

    python -m bench.snapshots --data DATA --record [--only NAME ...]

Requests that share beginnings go through the real cache one after another, without a scheduler and
in virtual time, eight at once: a prompt is computed when it is admitted, its output when another
request needs the place or its conversation goes on. Snapshots have a tenth of the memory of K and
V, and those who run have a state each beside them. The cache of an attention-only model of the same
blocks says how much there is to find.
"""

import argparse
import shlex
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench.machine import read_commit, without_folders
from bench.mooncake_trace import SCALE
from bench.records import DATE_FORMAT
from bench.scripts import BLOCK_SIZE, Script, Turn, TurnTrace, mooncake, resolved
from bench.snapshot_records import SnapshotRecord, SnapshotRow, snapshot_table
from bench.snapshot_traces import held_out, tenants
from quire.cache.admission import BlocksMissing
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.states.policy import SnapshotPolicy

REPOSITORY = Path(__file__).resolve().parents[1]
NUM_RUNNING = 8
MAX_CHUNK = 8192
SNAPSHOT_SHARE = 0.1
KV_SHARES = (1.0, 0.5, 0.2)
"""The blocks of the cache, as shares of all blocks of a trace."""


class StateShape(NamedTuple):
    """The bytes of a token's K and V in all layers, and of one state."""

    name: str
    token_bytes: int
    state_bytes: int

    def num_snapshots(self, num_tokens: int) -> int:
        """Return the snapshots that fit into a tenth of the memory of so many tokens."""
        return int(SNAPSHOT_SHARE * num_tokens * self.token_bytes / self.state_bytes)


SHAPES = (
    StateShape("Qwen3.5-0.8B", 6 * 2 * 2 * 256 * 2, 18 * 4 * (16 * 128 * 128 + 6144 * 3)),
    StateShape("Granite-4-H-tiny", 4 * 2 * 4 * 128 * 2, 36 * 4 * (48 * 64 * 128 + 3328 * 3)),
)


def policies(scale: int) -> Mapping[str, SnapshotPolicy]:
    """Return the policies to compare, for a trace whose tokens stand for `scale` tokens."""
    every = SnapshotPolicy(
        prompt_ends=False, junctions=False, outputs=False, interval=1024 // scale, ladder=0
    )
    return {
        "planned": SnapshotPolicy(ladder=4096 // scale),
        "planned, least recently used": SnapshotPolicy(ladder=4096 // scale, gain_weight=0.0),
        "every 1,024 tokens": every,
        "last state alone": SnapshotPolicy(junctions=False, ladder=0),
    }


class Running(NamedTuple):
    """A request whose prompt is computed."""

    turn: Turn
    table: BlockTable


class TurnDriver:
    """Takes turns through a cache, and counts the tokens of their prompts that are found."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._running: deque[Running] = deque()
        self.num_found = 0
        self.num_prompt_tokens = 0

    def run(self, turns: Sequence[Turn]) -> None:
        """Serve all turns."""
        for turn in turns:
            for each in [each for each in self._running if each.turn.conversation == turn[2]]:
                self._running.remove(each)
                self._finish(each)
            if len(self._running) == NUM_RUNNING:
                self._finish(self._running.popleft())
            self._serve(turn)
        while self._running:
            self._finish(self._running.popleft())

    def _serve(self, turn: Turn) -> None:
        table, num_tokens = self._cache.open_table(), len(turn.prompt)
        while isinstance(found := self._cache.admit(table, turn.prompt), BlocksMissing):
            if not self._running:
                raise RuntimeError(f"a prompt of {num_tokens} tokens does not fit into the cache")
            self._finish(self._running.popleft())
        for start in range(found, num_tokens, MAX_CHUNK):
            self._compute(table, turn.prompt, start, min(start + MAX_CHUNK, num_tokens))
        self.num_found += found
        self.num_prompt_tokens += num_tokens
        self._running.append(Running(turn, table))

    def _finish(self, running: Running) -> None:
        """Compute the output, all but its last token, as far as there is memory."""
        turn, table = running
        tokens = (*turn.prompt, *turn.output)
        start, end = len(turn.prompt), len(tokens) - 1
        if start < end and self._cache.grow(table, start, end) is not None:
            self._compute(table, tokens, start, end)
        self._cache.release(table)

    def _compute(self, table: BlockTable, tokens: Sequence[int], start: int, end: int) -> None:
        self._cache.plan_states(table, start, end)
        self._cache.advance(table, tokens, end)


def found_share(trace: TurnTrace, config: CacheConfig) -> float:
    """Return the share of the tokens of all prompts that a cache finds."""
    driver = TurnDriver(KVCache(config))
    driver.run(trace.turns)
    return driver.num_found / driver.num_prompt_tokens


def rows_of(trace: TurnTrace) -> Iterator[SnapshotRow]:
    """Yield a row for each size of the cache and each shape of states."""
    num_all = trace.num_distinct_blocks
    for share in KV_SHARES:
        num_blocks = int(share * num_all) + 1
        attention = found_share(trace, CacheConfig(num_blocks, BLOCK_SIZE))
        num_tokens = num_blocks * BLOCK_SIZE * trace.scale
        for shape in SHAPES:
            num_snapshots = shape.num_snapshots(num_tokens)
            found = {
                name: found_share(
                    trace,
                    CacheConfig(
                        num_blocks,
                        BLOCK_SIZE,
                        num_states=1 + NUM_RUNNING + num_snapshots,
                        snapshots=policy,
                    ),
                )
                for name, policy in policies(trace.scale).items()
            }
            row = SnapshotRow(
                trace.name, num_tokens, share, shape.name, num_snapshots, attention, found
            )
            print(row, file=sys.stderr, flush=True)
            yield row


def scripts(data: Path, num_requests: int) -> Iterator[Script]:
    """Yield what to compare on. A block of Mooncake's stands for one of the cache."""
    yield tenants("20 tenants", keeps_reasoning=True)
    yield tenants("20 tenants, no reasoning", keeps_reasoning=False)
    for name in ("conversation", "synthetic"):
        path = data / f"mooncake_{name}_trace.jsonl"
        yield mooncake(f"Mooncake {name}", path, num_requests).shortened(SCALE)
    yield from held_out()


def is_named(script: Script, only: Sequence[str] | None) -> bool:
    """Return whether a script is among the names of `--only`."""
    return only is None or script.name in only


def main(argv: Sequence[str] | None = None) -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.snapshots", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of Mooncake's traces")
    parser.add_argument("--requests", type=int, default=1 << 30, help="of a trace [all]")
    parser.add_argument("--only", action="append", help="the name of a trace; repeat it [all]")
    parser.add_argument("--record", action="store_true", help="keep it in bench/records/snapshots")
    words = sys.argv[1:] if argv is None else list(argv)
    flags = parser.parse_args(words)
    chosen = [each for each in scripts(flags.data, flags.requests) if is_named(each, flags.only)]
    if not chosen:
        parser.error(f"--only {flags.only} names no trace")
    record = SnapshotRecord(
        datetime.now(UTC).strftime(DATE_FORMAT),
        read_commit(REPOSITORY),
        without_folders(shlex.join(("python", "-m", "bench.snapshots", *words))),
        tuple(row for script in chosen for row in rows_of(resolved(script))),
    )
    if flags.record:
        print(record.save())
    print(snapshot_table(record.rows))


if __name__ == "__main__":
    main()
