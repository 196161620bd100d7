"""What ranks are asked to do in their processes: functions of a group, whose results travel."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from quire.models.config import KVOptions, ModelDtype, ModelFacts, Quantization
from quire.models.layers.decoder import DecoderForward
from quire.models.layers.fused_layers import (
    AttentionForward,
    GatedForward,
    LayerForward,
    NormForward,
)
from quire.models.layers.linears import PackedForward
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.loading.kernels import choose_kernels
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_model, load_shard
from quire.models.parallel.group import RankGroup
from tests.models.driver import generate_greedy, ignore_progress
from tests.models.paging import Paging

BLOCK_SIZE = 8
FUSED = (NormForward, AttentionForward, GatedForward, LayerForward, DecoderForward)
Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank, or one process with the whole model, says to prompts.

    logits: of each prompt's last token, [prompts][vocab_size].
    texts: what follows each prompt, greedily.
    num_packed: how many linear layers multiply packed weights.
    fused: the kinds of what stands in for other modules.
    """

    logits: list[list[float]]
    texts: list[list[int]]
    facts: ModelFacts
    weight_bytes: int
    num_packed: int
    fused: set[str]

    @property
    def block_bytes(self) -> int:
        return self.facts.layout(KVOptions()).block_bytes(BLOCK_SIZE)


class SaidAndKept(NamedTuple):
    """Texts, and the states after them, [prompts][elements]."""

    texts: list[list[int]]
    states: list[list[float]]


@dataclass(frozen=True, slots=True)
class Question:
    folder: Path
    prompts: Prompts
    num_new: int
    has_kernels: bool = False
    dtype: str = "float32"
    is_int8: bool = False


def ask_shard(group: RankGroup, question: Question) -> Answer:
    return _answer(
        load_shard(
            ModelSource(str(question.folder)),
            group,
            dtype=ModelDtype(question.dtype),
            on_progress=ignore_progress,
            kernels=_kernels(question),
        ),
        question,
    )


def states_of_shard(group: RankGroup, question: Question, seed: int) -> SaidAndKept:
    """Generate in random chunks and company, and return the texts and the last states."""
    loaded = load_shard(
        ModelSource(str(question.folder)),
        group,
        dtype=ModelDtype(question.dtype),
        on_progress=ignore_progress,
        kernels=_kernels(question),
    )
    paging, num_new = _paging(loaded, question), question.num_new
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE, num_states=paging.num_states)
    texts = generate_greedy(model, paging, question.prompts, num_new=num_new, seed=seed)
    assert model.states is not None
    return SaidAndKept(texts, model.states.rows[[last for last, _ in paging.states]].tolist())


def ask_whole(question: Question) -> Answer:
    """Ask the whole model in one process, as a reference."""
    return _answer(
        load_model(
            ModelSource(str(question.folder)),
            dtype=ModelDtype(question.dtype),
            device=torch.device("cpu"),
            on_progress=ignore_progress,
            kernels=_kernels(question),
        ),
        question,
    )


def refusal_of(group: RankGroup, folder: Path, trust_remote_code: bool = False) -> str:
    """Return why the model is not loaded."""
    try:
        load_shard(
            ModelSource(str(folder), trust_remote_code=trust_remote_code),
            group,
            dtype=ModelDtype.AUTO,
            on_progress=ignore_progress,
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def _kernels(question: Question) -> ModelKernels | None:
    if not question.has_kernels:
        return None
    quantization = Quantization.INT8 if question.is_int8 else Quantization.NONE
    options = KernelOptions(quantization, dtype=ModelDtype(question.dtype))
    return choose_kernels(options, torch.device("cpu"))


def _paging(loaded: LoadedModel, question: Question) -> Paging:
    prompts, tables = question.prompts, loaded.facts.layout(KVOptions()).tables
    longest = max(map(len, prompts)) + question.num_new
    return Paging(len(prompts), longest, block_size=BLOCK_SIZE, seed=5, tables=tables)


def _answer(loaded: LoadedModel, question: Question) -> Answer:
    prompts, num_new = question.prompts, question.num_new
    paging = _paging(loaded, question)
    forwards = [vars(part).get("forward") for part in loaded.module.modules()]
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE, num_states=paging.num_states)
    chunks = [(i, 0, prompt) for i, prompt in enumerate(prompts)]
    return Answer(
        logits=model.forward(paging.batch(chunks)).tolist(),
        texts=generate_greedy(model, paging, prompts, num_new=num_new, seed=11),
        facts=loaded.facts,
        weight_bytes=loaded.weight_bytes,
        num_packed=sum(isinstance(each, PackedForward) for each in forwards),
        fused={type(each).__name__ for each in forwards if isinstance(each, FUSED)},
    )
