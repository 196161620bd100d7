"""Measures what numbers of fewer bytes cost in perplexity, on real weights and the texts of people.

    python -m bench.real_quality MODEL_DIR --data DATA [--setting "int4 weights"] [--record]

The texts are 60 questions of GSM8K with answers, 40 functions of HumanEval and 20 pieces of
Shakespeare of 1,500 characters, some 25,000 tokens. Each is scored through the whole engine, in
chunks of CHUNK tokens so that nearly every token attends to K and V that have been stored.
`--record` keeps the figures; `make readme` prints the newest of each model and setting into
docs/models.md.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import msgspec

from bench.machine import Machine, read_commit, read_machine, without_folders
from bench.perplexity import encode, perplexity
from bench.record_files import save_record
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.models.config import KVCacheDtype, ModelDtype, Quantization, UnsupportedModel

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).parent / "records" / "quality"
CHUNK = 64
KV_BYTES = 1 << 28
MAX_MODEL_LEN = 2048
"""Longer than any of the texts; a model of less reads them in pieces."""
FLOAT32 = "float32"
NUM_MATHS, NUM_CODE, NUM_PLAYS, PIECE_CHARS = 60, 40, 20, 1500


class Score(msgspec.Struct, frozen=True):
    """Perplexity in one setting, or why the model was refused in it."""

    setting: str
    perplexity: float | None
    refusal: str = ""


class QualityRecord(msgspec.Struct, frozen=True):
    """Some or all settings of one model."""

    date: str
    commit: str
    command: str
    model: str
    machine: Machine
    num_tokens: int
    scores: tuple[Score, ...]


def _config(
    model_dir: Path,
    *,
    dtype: ModelDtype = ModelDtype.AUTO,
    quantization: Quantization = Quantization.NONE,
    kv: KVCacheDtype = KVCacheDtype.AUTO,
) -> EngineConfig:
    return EngineConfig(
        ModelConfig(str(model_dir), device="cpu", dtype=dtype, quantization=quantization),
        memory=MemoryConfig(kv_cache_dtype=kv, kv_cache_memory_bytes=KV_BYTES),
        scheduling=SchedulingConfig(
            max_model_len=_max_model_len(model_dir), max_num_seqs=4, max_num_batched_tokens=CHUNK
        ),
    )


def _max_model_len(model_dir: Path) -> int:
    stated = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    return min(MAX_MODEL_LEN, int(stated.get("max_position_embeddings", MAX_MODEL_LEN)))


def settings(model_dir: Path) -> Mapping[str, EngineConfig]:
    """Return what is measured, by name: float32 first, then as `--dtype auto` serves it."""
    return MappingProxyType(
        {
            FLOAT32: _config(model_dir, dtype=ModelDtype.FLOAT32),
            "as served by default": _config(model_dir),
            "int8 weights": _config(model_dir, quantization=Quantization.INT8),
            "int4 weights": _config(model_dir, quantization=Quantization.INT4),
            "K and V in int8": _config(model_dir, kv=KVCacheDtype.INT8),
            "K and V in fp8": _config(model_dir, kv=KVCacheDtype.FP8_E4M3),
        }
    )


def read_texts(data_dir: Path) -> list[str]:
    """Return the texts to score."""

    def rows(name: str, number: int) -> list[dict[str, str]]:
        lines = (data_dir / name).read_text(encoding="utf-8").splitlines()[:number]
        return [json.loads(line) for line in lines]

    plays = (data_dir / "tinyshakespeare.txt").read_text(encoding="utf-8")
    return [
        *(row["question"] + "\n" + row["answer"] for row in rows("gsm8k_test.jsonl", NUM_MATHS)),
        *(row["prompt"] + row["canonical_solution"] for row in rows("humaneval.jsonl", NUM_CODE)),
        *(plays[i * PIECE_CHARS : (i + 1) * PIECE_CHARS] for i in range(NUM_PLAYS)),
    ]


def measure(
    model_dir: Path, texts: Sequence[Sequence[int]], names: Sequence[str] = ()
) -> tuple[Score, ...]:
    """Score the texts, given as tokens, in the settings of these names, or in all."""
    found = []
    for name, config in settings(model_dir).items():
        if names and name not in names:
            continue
        try:
            found.append(Score(name, perplexity(config, texts)[0]))
        except (UnsupportedModel, ValueError) as error:
            found.append(Score(name, None, str(error)))
        print(*msgspec.structs.astuple(found[-1]), flush=True)
    return tuple(found)


def load_all(folder: Path = FOLDER) -> list[QualityRecord]:
    """Return all records, the oldest first."""
    return [
        msgspec.json.decode(path.read_bytes(), type=QualityRecord)
        for path in sorted(folder.glob("*.json"))
    ]


def quality_table(records: Sequence[QualityRecord]) -> str:
    """Return one Markdown row for each model and setting, by its newest record, against float32."""
    if not records:
        return "Not recorded yet: `--record` does it."
    newest: dict[str, dict[str, tuple[QualityRecord, Score]]] = {}
    for record in records:
        of_model = newest.setdefault(record.model, {})
        of_model.update({score.setting: (record, score) for score in record.scores})
    lines = ["| Model | Setting | Perplexity | Change | Measured |", "|---|---|---|---|---|"]
    for model in sorted(newest):
        plain = newest[model][FLOAT32][1].perplexity if FLOAT32 in newest[model] else None
        for record, score in newest[model].values():
            measured = f"{record.num_tokens:,} tokens, {record.date[:10]}, {record.commit[:7]}"
            cells = [model, score.setting, "refused", score.refusal, measured]
            if score.perplexity is not None:
                change = f"{score.perplexity / plain - 1:+.2%}" if plain is not None else "-"
                cells[2:4] = f"{score.perplexity:.4f}", change
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.real_quality", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--setting", action="append", default=[], help="measure this one alone")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    texts = [encode(args.model, text) for text in read_texts(args.data)]
    record = QualityRecord(
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        commit=read_commit(REPOSITORY),
        command=without_folders(shlex.join(["python", "-m", "bench.real_quality", *sys.argv[1:]])),
        model=args.model.resolve().name,
        machine=read_machine(),
        num_tokens=sum(map(len, texts)) - len(texts),
        scores=measure(args.model, texts, args.setting),
    )
    print(quality_table([record]))
    if args.record:
        print(f"recorded in {save_record(record, FOLDER, record.date).name}")


if __name__ == "__main__":
    main()
