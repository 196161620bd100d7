"""Prompts and texts of people, for real models.

They are public data where `QUIRE_TEST_DATA`, or `../shared/data` beside this repository, has them:
the first turns of MT-bench, GSM8K, HumanEval and Shakespeare. Elsewhere they are prompts of our own
and the pages of `docs`.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWN_PROMPTS = Path(__file__).parent / "prompts.txt"
PIECE_CHARS = 1500


def data_file(name: str) -> Path | None:
    """Return the file of public data of that name, or None where there is none."""
    folder = os.environ.get("QUIRE_TEST_DATA")
    path = (Path(folder) if folder else ROOT.parent / "shared" / "data") / name
    return path if path.is_file() else None


def conversations() -> list[list[str]]:
    """Return conversations as the user's turns: two each from MT-bench, or one from our file."""
    data = data_file("mt_bench_questions.jsonl")
    if data is None:
        return [[line] for line in OWN_PROMPTS.read_text(encoding="utf-8").splitlines()]
    rows = data.read_text(encoding="utf-8").splitlines()
    return [json.loads(row)["turns"] for row in rows]


def prompts(number: int) -> list[str]:
    """Return so many different prompts, spread evenly over all topics."""
    found = conversations()
    assert len(found) >= number, f"there are {len(found)} prompts"
    return [found[index * len(found) // number][0] for index in range(number)]


def passages(*, maths: int, code: int, plays: int) -> list[str]:
    """Return texts to score: so many of GSM8K, of HumanEval and pieces of Shakespeare.

    Where these are missing, as many pieces of our own pages come in their place.
    """
    gsm8k, humaneval, shakespeare = map(
        data_file, ("gsm8k_test.jsonl", "humaneval.jsonl", "tinyshakespeare.txt")
    )
    if gsm8k is None or humaneval is None or shakespeare is None:
        pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted(pages_of_docs()))
        return pieces(pages, maths + code + plays)
    return [
        *(row["question"] + "\n" + row["answer"] for row in first_rows(gsm8k, maths)),
        *(row["prompt"] + row["canonical_solution"] for row in first_rows(humaneval, code)),
        *pieces(shakespeare.read_text(encoding="utf-8"), plays),
    ]


def pages_of_docs() -> Iterator[Path]:
    return (ROOT / "docs").glob("*.md")


def pieces(text: str, number: int) -> list[str]:
    """Return the first pieces of a text."""
    return [text[i * PIECE_CHARS : (i + 1) * PIECE_CHARS] for i in range(number)]


def first_rows(path: Path, number: int) -> list[dict[str, str]]:
    """Return the first lines of a JSONL file."""
    lines = path.read_text(encoding="utf-8").splitlines()[:number]
    return [json.loads(line) for line in lines]
