"""A job of ranks that capture their steps, each on its own stand-in for a GPU's graphs."""

from dataclasses import dataclass
from pathlib import Path

import torch

from quire.models.config import KVOptions, ModelDtype
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.decode import record_decode
from quire.models.graphs.graphed_model import with_recorded
from quire.models.graphs.pieces import PieceBuffers, PieceLimits, record_pieces
from quire.models.graphs.recorded import CaptureResult
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loader import load_shard
from quire.models.parallel.group import RankGroup
from tests.models.driver import generate_greedy
from tests.models.driver import ignore_progress as ignore_phase
from tests.models.graphs.device import Fault, StandInDevice, Torch, ignore_progress
from tests.models.graphs.test_graphed_model import FromTensors
from tests.models.paging import Paging
from tests.models.reference import BLOCK_SIZE, MAX_LEN

CPU = torch.device("cpu")
MAX_TOKENS = 96


@dataclass(frozen=True, slots=True)
class CaptureQuestion:
    """`fault` is met by one rank alone, the `faulty_rank`, at its checks or captures of decode
    steps whose numbers are in `faulty`."""

    folder: Path
    prompts: list[list[int]]
    num_new: int
    fault: Fault | None = None
    faulty: frozenset[int] = frozenset()
    faulty_rank: int = 0


@dataclass(frozen=True, slots=True)
class CaptureAnswer:
    """The texts of one rank, and what it captured. `replays` are those of decode steps and of
    pieces."""

    texts: list[list[int]]
    decode: tuple[int, int, str]
    pieces: tuple[int, int, str]
    replays: tuple[int, int]


def ask_captured(group: RankGroup, question: CaptureQuestion) -> CaptureAnswer:
    prompts, num_new = question.prompts, question.num_new
    loaded = load_shard(
        ModelSource(str(question.folder)),
        group,
        dtype=ModelDtype.FLOAT32,
        on_progress=ignore_phase,
    )
    tables = loaded.facts.layout(KVOptions()).tables
    paging = Paging(len(prompts), MAX_LEN, block_size=BLOCK_SIZE, tables=tables)
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE)
    whole, cut = _devices(group, question)
    limits = DecodeLimits(len(prompts), MAX_LEN, -(-MAX_LEN // BLOCK_SIZE), len(tables))
    backend = FromTensors(model.backend, whole)
    decode = record_decode(model, backend, Buffers(limits, CPU), whole, ignore_progress)
    buffers = PieceBuffers(PieceLimits(MAX_TOKENS, len(prompts)), CPU)
    pieces = record_pieces(model, buffers, cut, ignore_progress)
    texts = generate_greedy(
        with_recorded(model, decode, pieces), paging, prompts, num_new=num_new, seed=3
    )
    replays = whole.num_replays, cut.num_replays
    return CaptureAnswer(texts, _told(decode), _told(pieces), replays)


def _devices(group: RankGroup, question: CaptureQuestion) -> tuple[StandInDevice, StandInDevice]:
    fault = question.fault if group.rank == question.faulty_rank else None
    whole = StandInDevice(Torch.ALL, fault, question.faulty, group)
    return whole, StandInDevice(ranks=group)


def _told(recorded: CaptureResult) -> tuple[int, int, str]:
    return recorded.largest, recorded.num_graphs, recorded.why_not
