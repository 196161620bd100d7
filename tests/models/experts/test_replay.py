"""The launches of a layer of experts can be captured and replayed: they are the same whatever the
numbers, and read them from tensors that stay where they are."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from quire.models.experts.replacement import replace_experts
from tests.models.reference import References, ordinary

pytest.importorskip("triton", reason="triton is not installed")
from quire.models.experts import launch  # noqa: E402

KERNELS = ("route", "multiply", "combine")


@dataclass
class Recorder:
    """Stands between a launcher and its kernels, and keeps each launch as a CUDA graph would."""

    launches: list[Callable[[], object]] = field(default_factory=list)

    def over(self, kernel: Callable[..., object]) -> "RecordedKernel":
        return RecordedKernel(self, kernel)

    def replay(self) -> None:
        for each in self.launches:
            each()


@dataclass
class RecordedKernel:
    recorder: Recorder
    kernel: Callable[..., object]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: object, **constants: object) -> None:
            def once() -> object:
                return self.kernel[grid](*arguments, **constants)  # type: ignore[index]

            self.recorder.launches.append(once)
            once()

        return run


def layer_of_experts(references: References) -> nn.Module:
    model = ordinary(references.checkpoint("qwen3_moe"))
    return next(part for part in model.modules() if type(part).__name__ == "Qwen3MoeExperts")


def a_step(num_hit: int) -> tuple[Tensor, Tensor, Tensor]:
    """Nine tokens, and two of the first experts for each."""
    shape = (9, 2)
    return torch.randn(9, 48), torch.randint(num_hit, shape), torch.rand(shape)


@torch.inference_mode()
def test_launches_are_right_again_when_their_tensors_are_filled_anew(
    references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = layer_of_experts(references)
    first, second = a_step(num_hit=1), a_step(num_hit=4)
    expected = [experts(*step) for step in (first, second)]
    recorder = Recorder()
    for name in KERNELS:
        monkeypatch.setattr(launch, name, recorder.over(getattr(launch, name)))
    replace_experts(experts)
    out = experts(*first)
    torch.testing.assert_close(out, expected[0])
    assert len(recorder.launches) == 4

    for tensor, new in zip(first, second, strict=True):
        tensor.copy_(new)
    recorder.replay()
    torch.testing.assert_close(out, expected[1])
