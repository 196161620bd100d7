"""The speed of a layer of experts, beside reading the weights of those that are hit, and beside
torch's own grouped products."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from bench.gpu.check import Figure, Finding, Place
from bench.gpu.speed.ceilings import ceilings
from bench.gpu.speed.floor import Work, judge
from bench.gpu.speed.timing import Call, cache_bytes, num_buffers, time_captured
from quire.models.experts.activations import Activation
from quire.models.experts.launch import ProductWeight
from quire.models.experts.operators import combine, multiply, route


class Experts(NamedTuple):
    """The shape of a layer of gated experts."""

    name: str
    num_experts: int
    top_k: int
    hidden: int
    inner: int

    @property
    def expert_elements(self) -> int:
        """The weights of one expert: gate, up and down."""
        return 3 * self.hidden * self.inner

    def work(self, num_tokens: int, num_hit: int) -> Work:
        """Return the work over `num_hit` experts: their weights are read once, in bfloat16, and
        rows are read and written."""
        rows_bytes = 2 * num_tokens * self.hidden * torch.bfloat16.itemsize
        num_bytes = num_hit * self.expert_elements * torch.bfloat16.itemsize + rows_bytes
        return Work(num_bytes, 2 * num_tokens * self.top_k * self.expert_elements)


MIXTRAL = Experts("like Mixtral 8x7B", 8, 2, 4096, 14336)
QWEN = Experts("like Qwen3 30B A3B", 128, 8, 2048, 768)
"""Shapes by their model cards."""
REHEARSED = Experts("tiny", 4, 2, 32, 16)
NUM_TOKENS, REHEARSED_TOKENS = (1, 32, 512), (1, 5)


class Layer(NamedTuple):
    """Rows [tokens, hidden] in bfloat16, their experts and the shares of these, both [tokens,
    top_k], and weights [experts, 2 inner, hidden] and [experts, hidden, inner]."""

    rows: Tensor
    expert_ids: Tensor
    shares: Tensor
    gate_up: Tensor
    down: Tensor

    @property
    def num_hit(self) -> int:
        """The number of experts that any token has."""
        return len(set(self.expert_ids.flatten().tolist()))

    def compute(self) -> Tensor:
        """Return [tokens, hidden] by Quire's kernels."""
        num_experts = len(self.down)
        routing = route(self.expert_ids.reshape(-1), num_experts)
        gate, up = self.gate_up.chunk(2, dim=1)
        inner = multiply(self.rows, ProductWeight((gate, up), (), Activation.SILU), routing)
        products = multiply(inner, ProductWeight((self.down,), ()), routing)
        return combine(products, self.expert_ids, self.shares, num_experts)

    def compute_by_torch(self) -> Tensor:
        """Return the same by torch's grouped products, which have a private name in some of its
        versions. Raises AttributeError where there are none, and RuntimeError where they cannot
        run."""
        product = torch._grouped_mm
        order = self.expert_ids.flatten().argsort()
        experts = torch.arange(len(self.down), device=order.device)
        counts = (self.expert_ids.flatten()[:, None] == experts).sum(dim=0)
        ends = counts.cumsum(0).to(torch.int32)
        tokens = order // self.expert_ids.shape[1]
        gate, up = product(self.rows[tokens], self.gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
        products = product(silu(gate) * up, self.down.transpose(1, 2), offs=ends)
        weighted = products * self.shares.flatten()[order, None]
        return torch.zeros_like(self.rows).index_add_(0, tokens, weighted)


@torch.inference_mode()
def check_experts(place: Place) -> Iterator[Finding]:
    """Time layers of few and of many experts."""
    rates = ceilings(place).rates
    for shape in (REHEARSED,) if place.is_rehearsal else (MIXTRAL, QWEN):
        for num_tokens in REHEARSED_TOKENS if place.is_rehearsal else NUM_TOKENS:
            layers = build_layers(shape, num_tokens, place.device)
            timing = time_captured(place.device, [layer.compute for layer in layers])
            hit = sum(layer.num_hit for layer in layers) / len(layers)
            work = shape.work(num_tokens, round(hit))
            beside = _beside_torch(layers, place.device, timing.median_s)
            what = f"experts {shape.name}, {num_tokens} tokens"
            yield judge(what, timing, work, rates, num_hit=hit, **beside)


def build_layers(shape: Experts, num_tokens: int, device: torch.device) -> list[Layer]:
    """Return so many layers that no weight is found in a cache when its turn comes again."""
    least_hit = min(shape.num_experts, shape.top_k)
    hit_bytes = least_hit * shape.expert_elements * torch.bfloat16.itemsize
    return [
        _layer(shape, num_tokens, device)
        for _ in range(num_buffers(hit_bytes, cache_bytes(device)))
    ]


def _layer(shape: Experts, num_tokens: int, device: torch.device) -> Layer:
    """Return random numbers; a token's experts differ."""

    def normal(*sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=torch.bfloat16, device=device).normal_(std=0.02)

    scores = torch.rand(num_tokens, shape.num_experts, device=device)
    shares, expert_ids = scores.topk(shape.top_k)
    return Layer(
        50 * normal(num_tokens, shape.hidden),
        expert_ids,
        shares.softmax(dim=-1).bfloat16(),
        normal(shape.num_experts, 2 * shape.inner, shape.hidden),
        normal(shape.num_experts, shape.hidden, shape.inner),
    )


def _beside_torch(layers: list[Layer], device: torch.device, own_s: float) -> dict[str, Figure]:
    """Time torch's, and return how far its result is from ours, relative; or why it does not run,
    or waits for the host, which no graph may."""
    calls: list[Call] = [layer.compute_by_torch for layer in layers]
    try:
        with _waiting_refused(device):
            theirs = layers[0].compute_by_torch().float()
        torch_s = time_captured(device, calls).median_s
    except (AttributeError, RuntimeError) as error:
        return {"torch_why_not": str(error).splitlines()[0]}
    distance = (layers[0].compute().float() - theirs).norm() / theirs.norm()
    return {
        "torch_ms": 1e3 * torch_s,
        "times_torch": torch_s / own_s,
        "distance": float(distance),
    }


@contextmanager
def _waiting_refused(device: torch.device) -> Iterator[None]:
    """Let operations that wait for the device raise RuntimeError."""
    if device.type == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
