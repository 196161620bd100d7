"""Steps are counted by how the device is told to compute them."""

from collections.abc import Sequence

import torch

from quire.engine.runner import Runner, RunnerConfig
from quire.models.config import KVOptions
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.decode import record_decode
from quire.models.graphs.graphed_model import with_recorded
from quire.models.graphs.pieces import PieceBuffers, PieceLimits, record_pieces
from quire.models.loading.loaded_model import LoadedModel
from quire.scheduler.accounts import Counters
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import NewRequestData, SeqChunk, Step, StepLaunch
from tests.models.driver import load
from tests.models.graphs.device import StandInDevice, ignore_progress
from tests.models.graphs.test_graphed_model import FromTensors
from tests.models.reference import BLOCK_SIZE, MAX_LEN, References

CPU = torch.device("cpu")
MAX_SEQS, MAX_TOKENS, NUM_BLOCKS = 2, 40, 32
MAX_BLOCKS = -(-MAX_LEN // BLOCK_SIZE)


def runner_of(loaded: LoadedModel) -> Runner:
    """Return a runner of a model whose decode steps are captured whole, and others in pieces."""
    model, device = loaded.attach(NUM_BLOCKS, BLOCK_SIZE, KVOptions()), StandInDevice()
    limits = DecodeLimits(MAX_SEQS, MAX_LEN, MAX_BLOCKS, 1)
    backend, buffers = FromTensors(model.backend, device), Buffers(limits, CPU)
    decode = record_decode(model, backend, buffers, device, ignore_progress)
    limits_of_pieces = PieceLimits(MAX_TOKENS, MAX_SEQS)
    pieces = record_pieces(model, PieceBuffers(limits_of_pieces, CPU), device, ignore_progress)
    config = RunnerConfig(MAX_SEQS, MAX_BLOCKS, BLOCK_SIZE, "cpu")
    return Runner(config, with_recorded(model, decode, pieces))


def steps(lengths: Sequence[int]) -> list[Step]:
    """Return a step of the prompts of so many tokens, one of the tokens after them, and an empty
    one."""
    joined, chunks = [], []
    for index, length in enumerate(lengths):
        prompt = tuple(range(3, 3 + length))
        new = NewRequest(str(index), prompt, Sampling(temperature=0.0), Stopping(4))
        blocks = tuple(range(1 + index * MAX_BLOCKS, 1 + (index + 1) * MAX_BLOCKS))
        joined.append(NewRequestData(new, prompt, (blocks,)))
        chunks.append(SeqChunk(new.id, 0, length, (), samples=True))
    after = tuple(SeqChunk(str(index), length, 1, (), True) for index, length in enumerate(lengths))
    return [
        Step(1, (), tuple(joined), tuple(chunks), sum(lengths)),
        Step(2, (), (), after, len(after)),
        Step(3, (), (), (), 0),
    ]


def test_a_step_says_how_it_was_launched(references: References) -> None:
    loaded = load(references.checkpoint("llama"), "float32")
    for lengths, first in (((9, 20), StepLaunch.PIECEWISE), ((9, 60), StepLaunch.NONE)):
        runner = runner_of(loaded)
        found = [runner.run(step).launch for step in steps(lengths)]
        assert found == [first, StepLaunch.FULL, None]


def test_a_model_without_captures_launches_its_steps(references: References) -> None:
    model = load(references.checkpoint("llama"), "float32").attach(NUM_BLOCKS, BLOCK_SIZE)
    runner = Runner(RunnerConfig(MAX_SEQS, MAX_BLOCKS, BLOCK_SIZE, "cpu"), model)
    assert [runner.run(step).launch for step in steps([5])] == [StepLaunch.NONE] * 2 + [None]


def test_steps_are_counted_by_how_they_were_launched() -> None:
    counters = Counters()
    for launch in (StepLaunch.FULL, None, StepLaunch.PIECEWISE, StepLaunch.FULL):
        counters.note_step(launch, None)
    assert counters.num_steps == {
        StepLaunch.NONE: 0,
        StepLaunch.PIECEWISE: 1,
        StepLaunch.FULL: 2,
    }
