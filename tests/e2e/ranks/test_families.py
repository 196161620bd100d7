"""Models divided between two ranks answer as they do whole, on one server each way, so short of
blocks that requests are swapped out: a family with all that a plan of ranks has, experts too.
`make long` has more, the bundled model and stories260K.
"""

import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quire.engine.startup.self_test import BUNDLED
from tests.e2e.server_process import REPLICAS, ServerProcess, server_process
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED
from tests.models.reference import STORIES

pytestmark = pytest.mark.skipif(REPLICAS is not None, reason="replicas have a model whole")

FEW = ("mixtral",)
MORE = ("bundled", "gemma2", "llama", "qwen2", "qwen3", "mistral")
VOCAB = 2048
PREFIX = list(range(300, 328))
PRESSED = """
- name: {name}
  model: {folder}
  dtype: float32
  num-threads: 1
  block-size: 8
  num-gpu-blocks-override: 40
  swap-space: 0.01
  preemption-mode: swap
  max-model-len: 128
  max-num-seqs: 8
  max-num-batched-tokens: 40
  tensor-parallel-size: {num_ranks}
"""
LENGTH: Mapping[str, object] = {"max_tokens": 60, "ignore_eos": True}
GREEDY = [{"prompt": [*PREFIX, *range(10 * n, 10 * n + 5 + n)], "temperature": 0} for n in range(8)]
DRAWN: Mapping[str, object] = {"temperature": 1, "top_k": 8}
"""Sums of two ranks round unlike sums of one: logarithms of probabilities differ by some 1e-6, and
so do the places, in an inverse CDF, where one token ends and the next begins. With 8 of them some
1e-5 of the draws fall between, with all 2,048 one in 2,000 does."""
SEEDED = [{**DRAWN, "prompt": [*PREFIX, 5 + n], "seed": n} for n in range(4)]
FORKED: Mapping[str, object] = {**DRAWN, "prompt": [*PREFIX, 9], "seed": 9, "n": 3}
BODIES: tuple[Mapping[str, object], ...] = (*GREEDY, *SEEDED, FORKED)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(FEW, id="few"),
        pytest.param(MORE, id="more", marks=pytest.mark.long),
        pytest.param(("stories260K",), id="trained", marks=pytest.mark.long),
    ],
)
def folders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Path]:
    return {name: checkpoint(name, tmp_path_factory) for name in request.param}


def checkpoint(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained one, or a random one whose vocabulary is that of the bundled tokenizer."""
    if name == "bundled":
        return Path(BUNDLED)
    if name == "stories260K":
        if not STORIES.is_dir():
            pytest.skip("shared/models/stories260K is not there")
        return STORIES
    family = SERVED[name]
    family = family._replace(fields={**family.fields, "vocab_size": VOCAB})
    folder = save_checkpoint(family, tmp_path_factory.mktemp(name))
    shutil.copy(Path(BUNDLED) / "tokenizer.json", folder)
    return folder


class Answers:
    """The texts of all requests to each model, and what the server has counted meanwhile."""

    def __init__(self, server: ServerProcess, names: Iterable[str]) -> None:
        self.texts = {name: texts(server, name) for name in names}
        self.num_preemptions = counts(server, "num_preemptions_total", names)
        self.num_hits = counts(server, "prefix_cache_hits_total", names)
        self.num_ranks = counts(server, "engine_ranks", names)


@pytest.fixture(scope="module")
def whole(folders: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers_of(folders, 1, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def divided(folders: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers_of(folders, 2, tmp_path_factory.mktemp("divided"))


def answers_of(folders: Mapping[str, Path], num_ranks: int, folder: Path) -> Answers:
    models = [
        PRESSED.format(name=name, folder=path, num_ranks=num_ranks)
        for name, path in folders.items()
    ]
    path = folder / "models.yaml"
    path.write_text("".join(models))
    with server_process("--models-config-file", str(path)) as server:
        return Answers(server, folders)


def texts(server: ServerProcess, model: str) -> list[list[str]]:
    """All requests at once."""

    def ask(body: Mapping[str, object]) -> list[str]:
        reply = server.client.post("/v1/completions", json={"model": model, **LENGTH, **body})
        choices = reply.raise_for_status().json()["choices"]
        return [choice["text"] for choice in choices]

    with ThreadPoolExecutor(len(BODIES)) as pool:
        return list(pool.map(ask, BODIES))


def counts(server: ServerProcess, metric: str, models: Iterable[str]) -> dict[str, float]:
    return {name: server.metric(f'quire:{metric}{{model_name="{name}"}}') for name in models}


def test_two_ranks_say_what_one_says(whole: Answers, divided: Answers) -> None:
    assert divided.texts == whole.texts
    for name, texts_of_model in divided.texts.items():
        # A trained model may tell two prompts the same story.
        assert len({*map(tuple, texts_of_model)}) > len(BODIES) // 2
        assert divided.num_preemptions[name] > 0
        assert divided.num_hits[name] > 0
        assert (whole.num_ranks[name], divided.num_ranks[name]) == (1, 2)


@pytest.mark.long  # the bytes of a block and how many find room have tests of their own
def test_the_same_bytes_of_each_rank_are_twice_the_blocks() -> None:
    one, two = map(num_blocks, (1, 2))
    assert two == 2 * one


def num_blocks(num_ranks: int) -> int:
    sized = ("--kv-cache-memory-bytes", "8MiB", "--dtype", "float32")
    with server_process(*sized, "--tensor-parallel-size", str(num_ranks)) as server:
        (line,) = (
            line
            for line in server.client.get("/metrics").text.splitlines()
            if line.startswith("quire:cache_config_info{")
        )
    return int(line.partition('num_gpu_blocks="')[2].partition('"')[0])
