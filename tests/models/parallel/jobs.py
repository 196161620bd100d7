"""What ranks are asked to do in their processes: functions of a group, whose results travel."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from quire.models.config import KVOptions, ModelDtype, ModelFacts
from quire.models.layers.linears import PackedForward
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.kernels import choose_kernels
from quire.models.loading.loader import LoadedModel, load_model, load_shard
from quire.models.loading.weight_format import KernelOptions
from quire.models.parallel.group import RankGroup
from tests.models.driver import generate_greedy, ignore_progress
from tests.models.paging import Paging

BLOCK_SIZE = 8
Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank, or one process with the whole model, says to prompts.

    logits: of each prompt's last token, [prompts][vocab_size].
    texts: what follows each prompt, greedily.
    num_packed: how many linear layers multiply packed weights.
    """

    logits: list[list[float]]
    texts: list[list[int]]
    facts: ModelFacts
    weight_bytes: int
    num_packed: int

    @property
    def block_bytes(self) -> int:
        return self.facts.layout(KVOptions()).block_bytes(BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Question:
    folder: Path
    prompts: Prompts
    num_new: int
    has_kernels: bool = False
    dtype: str = "float32"


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
    return choose_kernels(KernelOptions(dtype=ModelDtype(question.dtype)), torch.device("cpu"))


def _answer(loaded: LoadedModel, question: Question) -> Answer:
    prompts, num_new = question.prompts, question.num_new
    layout = loaded.facts.layout(KVOptions())
    longest = max(map(len, prompts)) + num_new
    paging = Paging(
        len(prompts), longest, block_size=BLOCK_SIZE, seed=5, num_groups=len(layout.groups)
    )
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE)
    chunks = [(i, 0, prompt) for i, prompt in enumerate(prompts)]
    return Answer(
        logits=model.forward(paging.batch(chunks)).tolist(),
        texts=generate_greedy(model, paging, prompts, num_new=num_new, seed=11),
        facts=loaded.facts,
        weight_bytes=loaded.weight_bytes,
        num_packed=_num_packed(loaded.module),
    )


def _num_packed(module: nn.Module) -> int:
    return sum(isinstance(vars(part).get("forward"), PackedForward) for part in module.modules())
