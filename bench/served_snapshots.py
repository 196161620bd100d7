"""Compares where snapshots of states are taken, through the HTTP server.

    python -m bench.served_snapshots --data DATA --record [--only NAME ...]

A server with a tiny random model with recurrent layers is asked what scripts say, with its own
outputs in later prompts, eight requests at once: once as it is, and twice with optimizations
disabled, so that snapshots are taken at an interval or at ends alone. The server beside it has a
model of the same shape with attention in all layers, and as many blocks. Lengths are an eighth of
those of the traces, and so is the interval. KV memory is a half of all blocks of a script, and
snapshots have a tenth of its bytes.
"""

import argparse
import json
import shlex
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from bench.compare import end_on_sigterm
from bench.machine import read_commit, without_folders
from bench.make_models import copy_bundled_tokenizer
from bench.peers import QUIRE
from bench.records import DATE_FORMAT
from bench.script_clients import FoundTokens, play_script
from bench.scripts import BLOCK_SIZE, Script, first_conversations, mooncake, resolved
from bench.servers import HOST, Launch, running
from bench.snapshot_records import SERVED_FOLDER, SnapshotRecord, SnapshotRow, snapshot_table
from bench.snapshot_traces import agents, documents, tenants
from bench.snapshots import NUM_RUNNING, REPOSITORY, StateShape, is_named
from bench.trace_clients import Asked
from quire.engine.startup.state_plan import PER_REQUEST
from quire.workbench.bench.exchange import ServerAddress

SCALE = 8
KV_SHARE = 0.5
NUM_CONVERSATIONS = 250
"""The conversations of Mooncake's trace that are sent."""
VOCAB_SIZE = 2048
NUM_LAYERS, HEAD_DIM, NUM_HEADS, NUM_TAPS = 4, 32, 4, 3
CHANNELS = (1 + 1 + NUM_HEADS) * HEAD_DIM
TINY = StateShape(
    "tiny Qwen3.5",
    token_bytes=2 * HEAD_DIM * 4,
    state_bytes=(NUM_LAYERS - 1) * 4 * (NUM_HEADS * HEAD_DIM**2 + (NUM_TAPS - 1) * CHANNELS),
)
"""One head of K and V in one layer, and a delta net in each of the others, in float32: a state has
the bytes of K and V of 210 tokens, which stand for 1,680. One of Qwen3.5-0.8B has those
of 1,644."""
START_TIMEOUT_S = 120.0
ONE_EACH = "planned, one state a request"
POLICIES: Mapping[str, tuple[str, ...]] = {
    "planned": (),
    ONE_EACH: (),
    "every 1,024 tokens": (
        *("--state-snapshot-interval", str(1024 // SCALE)),
        *("--disable-optimizations", "planned-snapshots,last-snapshots"),
    ),
    "last state alone": ("--disable-optimizations", "planned-snapshots"),
}
"""The options of each policy. A running request has its own state and the snapshot of its output,
as by default, and in one case its own alone."""


def write_model(folder: Path, max_length: int, *, is_recurrent: bool) -> None:
    """Write a random checkpoint, with delta nets in all layers but the last or with attention in
    all."""
    kind = "linear_attention" if is_recurrent else "full_attention"
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=NUM_LAYERS,
        layer_types=[*[kind] * (NUM_LAYERS - 1), "full_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=HEAD_DIM,
        linear_num_key_heads=1,
        linear_num_value_heads=NUM_HEADS,
        linear_key_head_dim=HEAD_DIM,
        linear_value_head_dim=HEAD_DIM,
        linear_conv_kernel_dim=NUM_TAPS,
        max_position_embeddings=max_length,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.5,
        },
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    Qwen3_5ForCausalLM(config).save_pretrained(folder)
    copy_bundled_tokenizer(folder, max_length)


def scripts(data: Path) -> Iterator[Script]:
    """Yield what to send, the lengths divided."""
    trace = mooncake("Mooncake conversation", data / "mooncake_conversation_trace.jsonl", 1 << 30)
    for script in (
        tenants("20 tenants", keeps_reasoning=True),
        tenants("20 tenants, no reasoning", keeps_reasoning=False),
        agents("agents"),
        documents("documents"),
        first_conversations(trace, NUM_CONVERSATIONS),
    ):
        yield script.shortened(SCALE)


def row_of(script: Script, scratch: Path) -> SnapshotRow:
    """Return the figures of one script: it is sent to a server of each policy."""
    trace = resolved(script)
    longest = max(len(turn.prompt) + len(turn.output) for turn in trace.turns)
    num_blocks = int(KV_SHARE * trace.num_distinct_blocks) + 1
    num_snapshots = TINY.num_snapshots(num_blocks * BLOCK_SIZE)
    common = (
        *("--num-gpu-blocks-override", str(num_blocks), "--block-size", str(BLOCK_SIZE)),
        *("--max-num-seqs", str(NUM_RUNNING), "--max-model-len", str(longest)),
        *("--dtype", "float32", "--num-threads", "1"),
    )
    folders = {True: scratch / "recurrent", False: scratch / "attention"}
    for is_recurrent, folder in folders.items():
        write_model(folder, longest, is_recurrent=is_recurrent)

    def found(label: str, folder: Path, options: tuple[str, ...]) -> float:
        launch = Launch(label, QUIRE, QUIRE.program, folder, (*common, *options))
        log = scratch / "server.log"
        with running(launch, log_path=log, start_timeout_s=START_TIMEOUT_S) as server:
            address = ServerAddress(HOST, server.port)
            check_states(address.url)
            asked = Asked(address, QUIRE.served_name, VOCAB_SIZE)
            figures = play_script(script, asked, num_clients=NUM_RUNNING)
        print(f"{script.name}, {label}: {figures}", file=sys.stderr, flush=True)
        return share_of(figures)

    return SnapshotRow(
        script.name,
        num_blocks * BLOCK_SIZE * script.scale,
        KV_SHARE,
        TINY.name,
        num_snapshots,
        found("attention alone", folders[False], ()),
        {
            name: found(name, folders[True], (*num_states(name, num_snapshots), *options))
            for name, options in POLICIES.items()
        },
    )


def num_states(policy: str, num_snapshots: int) -> tuple[str, str]:
    """Return the option for the states of running requests, the snapshots and the null state."""
    per_request = 1 if policy == ONE_EACH else PER_REQUEST
    return "--num-recurrent-states", str(1 + per_request * NUM_RUNNING + num_snapshots)


def share_of(figures: FoundTokens) -> float:
    """Return the share of the prompts' tokens that was found."""
    return figures.num_found / figures.num_prompt_tokens


def check_states(url: str) -> None:
    """Raise SystemExit unless a server's states, if it has any, have the bytes that their number
    was reckoned by."""
    with urllib.request.urlopen(f"{url}/v1/server_info", timeout=60) as answer:
        memory = json.load(answer)["memory"]
    num_states = memory.get("num_states", 0)
    num_bytes = memory["lines"]["states"] if num_states else 0
    if num_bytes != num_states * TINY.state_bytes:
        raise SystemExit(f"{num_states} states have {num_bytes} bytes, must be {TINY.state_bytes}")


def main(argv: Sequence[str] | None = None) -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.served_snapshots", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of Mooncake's traces")
    parser.add_argument("--only", action="append", help="the name of a trace; repeat it [all]")
    parser.add_argument("--record", action="store_true", help="keep it in bench/records")
    words = sys.argv[1:] if argv is None else list(argv)
    flags = parser.parse_args(words)
    signal.signal(signal.SIGTERM, end_on_sigterm)
    chosen = [each for each in scripts(flags.data) if is_named(each, flags.only)]
    if not chosen:
        parser.error(f"--only {flags.only} names no trace")
    rows = []
    for script in chosen:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(row_of(script, Path(scratch)))
    record = SnapshotRecord(
        datetime.now(UTC).strftime(DATE_FORMAT),
        read_commit(REPOSITORY),
        without_folders(shlex.join(("python", "-m", "bench.served_snapshots", *words))),
        tuple(rows),
    )
    if flags.record:
        print(record.save(SERVED_FOLDER))
    print(snapshot_table(record.rows))


if __name__ == "__main__":
    main()
