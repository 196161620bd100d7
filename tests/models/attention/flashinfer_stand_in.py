"""A stand-in for FlashInfer: its two wrappers, with the signatures that versions 0.6 and 0.7
publish as far as they are used here. They raise where a GPU would read what it must not, and
compute in float32 with torch.

What a kernel masks has no weight, but is multiplied all the same, so that a NaN among it shows;
what lies beyond a sequence's end is not read.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple, Unpack

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from quire.models.attention.flashinfer.api import (
    DecodeOptions,
    DecodePlan,
    PlanTerms,
    PrefillPlan,
)
from quire.models.kv.kv_store import KVStore
from tests.models.attention.scene import Scene, look
from tests.models.paging import Paging
from tests.models.tape import Act, Tape

Ints = tuple[int, ...]

PLAN_BYTES = 8 * 2**20
ALIGNMENT = 16
HALVES = (torch.float16, torch.bfloat16)
GROUPS = (1, 2, 3, 4, 6, 8, 16)
"""Query heads of a K/V head that chunks of one token may have without tensor cores."""
FINITE = 100.0


class MissingJITCacheError(RuntimeError):
    """Named as FlashInfer's own, where it is told not to compile what it would have to."""


class Kernels(NamedTuple):
    """What a module of kernels is compiled for."""

    head_dim: int
    has_window: bool
    has_cap: bool


ALL = frozenset(
    Kernels(size, window, cap)
    for size in (64, 128, 256)
    for window in (False, True)
    for cap in (False, True)
)


@dataclass
class Machine:
    """What a machine has of FlashInfer, and what was planned there, in order."""

    compiled: frozenset[Kernels] = ALL
    all_plans: list["Plan"] = field(default_factory=list)

    @property
    def plans(self) -> list["Plan"]:
        """Those of steps, which have larger pages than the trials of what is compiled."""
        return [plan for plan in self.all_plans if plan.page_size > 1]

    def install(self) -> ModuleType:
        """Return what `import flashinfer` gives here."""
        package = ModuleType("flashinfer")
        package.__spec__ = ModuleSpec("flashinfer", None)
        for stand_in in (BatchPrefillWithPagedKVCacheWrapper, BatchDecodeWithPagedKVCacheWrapper):
            here = type(stand_in.__name__, (stand_in,), {"machine": self})
            setattr(package, stand_in.__name__, here)
        return package


@contextmanager
def installed(machine: Machine) -> Iterator[Machine]:
    """Let FlashInfer be what a machine has."""
    before = sys.modules.get("flashinfer")
    sys.modules["flashinfer"] = machine.install()
    try:
        yield machine
    finally:
        del sys.modules["flashinfer"]
        if before is not None:
            sys.modules["flashinfer"] = before


@dataclass(frozen=True)
class Plan:
    """What a wrapper was told of a step: on the host all but the pages."""

    q_starts: Ints
    kv_starts: Ints
    last_sizes: Ints
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    sm_scale: float
    window_left: int
    logits_soft_cap: float
    dtype: torch.dtype
    causal: bool

    def check(self) -> None:
        """Raise ValueError unless it is one that FlashInfer may be given."""
        num_seqs = len(self.last_sizes)
        require(len(self.q_starts) == len(self.kv_starts) == num_seqs + 1, "lengths of indptr")
        require(self.q_starts[0] == self.kv_starts[0] == 0, "an indptr begins with 0")
        for number, last_size in enumerate(self.last_sizes):
            require(1 <= last_size <= self.page_size, f"{last_size} tokens in a last page")
            require(self.num_pages(number) >= 1, "a sequence without a page")
            require(self.num_queries(number) >= 1, "a sequence without a query")
            require(self.length(number) >= self.num_queries(number), "queries before the first key")
        require(self.num_qo_heads % self.num_kv_heads == 0, "query heads of a K/V head")
        require(self.dtype in HALVES, f"{self.dtype} is not computed")
        require(math.isfinite(self.sm_scale) and self.logits_soft_cap >= 0, "scale and cap")
        require(self.window_left >= -1, "a window")

    @property
    def kernels(self) -> Kernels:
        return Kernels(self.head_dim, self.window_left >= 0, self.logits_soft_cap > 0)

    def num_queries(self, number: int) -> int:
        return self.q_starts[number + 1] - self.q_starts[number]

    def num_pages(self, number: int) -> int:
        return self.kv_starts[number + 1] - self.kv_starts[number]

    def length(self, number: int) -> int:
        return (self.num_pages(number) - 1) * self.page_size + self.last_sizes[number]


class _Wrapper:
    """What both wrappers do. The pages, their starts and last sizes are read where a run reads
    them: in tensors on the device."""

    machine = Machine()

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str) -> None:
        require(kv_layout == "NHD", f"{kv_layout} is not how K and V lie")
        self._device = float_workspace_buffer.device
        self._check_workspace(float_workspace_buffer)
        self._plan: Plan | None = None
        self._pages: tuple[Tensor, Tensor, Tensor] | None = None

    def reset_workspace_buffer(
        self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor
    ) -> None:
        self._check_workspace(float_workspace_buffer)
        self._check_workspace(int_workspace_buffer)
        require(int_workspace_buffer.nbytes >= PLAN_BYTES, "memory of a plan")

    def _check_workspace(self, buffer: Tensor) -> None:
        require(buffer.dtype is torch.uint8 and buffer.dim() == 1, "a workspace is of bytes")
        require(buffer.is_contiguous() and buffer.data_ptr() % ALIGNMENT == 0, "an aligned one")
        require(buffer.device == self._device, "a workspace on another device")

    def _keep(self, plan: Plan, pages: tuple[Tensor, Tensor, Tensor]) -> None:
        plan.check()
        if plan.kernels not in self.machine.compiled:
            raise MissingJITCacheError("JIT compilation is disabled via FLASHINFER_DISABLE_JIT")
        starts, ids, last_sizes = pages
        for each in (starts, last_sizes):
            require(each.device.type == "cpu", "lengths are read on the host")
        require(ids.device == self._device, "pages on another device")
        require(len(ids) == plan.kv_starts[-1], "as many pages as the indptr says")
        for each in pages:
            require(each.dtype is torch.int32 and each.dim() == 1, "int32 of one dimension")
            require(each.is_contiguous(), "numbers one after the other")
        self._plan = plan
        self.machine.all_plans.append(plan)

    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *args: object,
        out: Tensor | None = None,
    ) -> Tensor:
        plan, keys, values = self._plan, *paged_kv_cache
        assert plan is not None, "plan info is not initialized"
        self._check_run(plan, q, keys, values)
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        require(out.shape == q.shape and out.dtype is q.dtype, "the output is like the queries")
        require(out.is_contiguous() and out.device == q.device, "a dense output on the device")
        launch(lambda: self._attend(plan, q, (keys, values), out))
        return out

    def _attend(self, plan: Plan, q: Tensor, kv: tuple[Tensor, Tensor], out: Tensor) -> None:
        assert self._pages is not None
        starts, ids, last_sizes = (each.tolist() for each in self._pages)
        for number in range(len(plan.last_sizes)):
            pages = ids[starts[number] : starts[number + 1]]
            length = (len(pages) - 1) * plan.page_size + last_sizes[number]
            rows = slice(plan.q_starts[number], plan.q_starts[number + 1])
            keys, values = (each[pages].flatten(0, 1)[:length].float() for each in kv)
            out[rows] = attended(plan, q[rows].float(), keys, values).to(q.dtype)

    def _check_run(self, plan: Plan, q: Tensor, keys: Tensor, values: Tensor) -> None:
        require(q.shape == (plan.q_starts[-1], plan.num_qo_heads, plan.head_dim), "shape of q")
        require(q.stride(-1) == 1, "the last dimension of q is dense")
        require(keys.shape == values.shape, "keys and values are alike")
        require(keys.stride() == values.stride() and keys.stride(-1) == 1, "and lie alike")
        require(
            keys.shape[1:] == (plan.page_size, plan.num_kv_heads, plan.head_dim), "shape of pages"
        )
        for each in (q, keys, values):
            require(each.dtype is plan.dtype, "the dtype that was planned")
            require(each.device == self._device, "the device that was planned")
            require(each.data_ptr() % ALIGNMENT == 0, "aligned for loads of 16 bytes")
            require(all(s * each.itemsize % ALIGNMENT == 0 for s in each.stride()[:-1]), "strides")


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def plan(self, **terms: Unpack[PrefillPlan]) -> None:
        require(terms.keys() == PrefillPlan.__required_keys__, "names of a plan for chunks")
        starts = terms["qo_indptr"]
        require(starts.dtype is torch.int32 and starts.device.type == "cpu", "qo_indptr")
        pages = (
            terms["paged_kv_indptr"],
            terms["paged_kv_indices"],
            terms["paged_kv_last_page_len"],
        )
        lengths = tuple(starts.tolist()), tuple(pages[0].tolist()), tuple(pages[2].tolist())
        self._keep(plan_of(lengths, terms["head_dim_qk"], terms, causal=terms["causal"]), pages)
        self._pages = pages


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str, **options: Unpack[DecodeOptions]
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        require(options.keys() <= DecodeOptions.__optional_keys__, "names of options")
        self._has_tensor_cores = options.get("use_tensor_cores", False)
        self._buffers: tuple[Tensor, Tensor, Tensor] | None = None
        if options.get("use_cuda_graph", False):
            buffers = (
                options["paged_kv_indptr_buffer"],
                options["paged_kv_indices_buffer"],
                options["paged_kv_last_page_len_buffer"],
            )
            for each in buffers:
                require(each.dtype is torch.int32 and each.is_contiguous(), "a buffer of int32")
                require(each.device == self._device, "a buffer on another device")
            require(len(buffers[0]) == len(buffers[2]) + 1, "sizes of buffers")
            self._buffers = buffers

    def plan(self, **terms: Unpack[DecodePlan]) -> None:
        require(terms.keys() == DecodePlan.__required_keys__, "names of a plan for tokens")
        group = terms["num_qo_heads"] // terms["num_kv_heads"]
        require(self._has_tensor_cores or group in GROUPS, "Unsupported group_size")
        pages = terms["indptr"], terms["indices"], terms["last_page_len"]
        q_starts = tuple(range(len(pages[2]) + 1))
        lengths = q_starts, tuple(pages[0].tolist()), tuple(pages[2].tolist())
        self._keep(plan_of(lengths, terms["head_dim"], terms, causal=False), pages)
        self._pages = pages if self._buffers is None else self._fill(self._buffers, pages)

    def _fill(
        self, buffers: tuple[Tensor, Tensor, Tensor], pages: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        require(len(pages[2]) == len(buffers[2]), "the number of sequences is fixed")
        require(len(pages[1]) <= len(buffers[1]), "more pages than the buffer holds")
        for buffer, numbers in zip(buffers, pages, strict=True):
            buffer[: len(numbers)].copy_(numbers)
        return buffers


def plan_of(
    lengths: tuple[Ints, Ints, Ints], head_dim: int, terms: PlanTerms, *, causal: bool
) -> Plan:
    require(terms["kv_data_type"] is terms["q_data_type"], "queries are as K and V are")
    return Plan(
        *lengths,
        terms["num_qo_heads"],
        terms["num_kv_heads"],
        head_dim,
        terms["page_size"],
        terms["sm_scale"],
        terms["window_left"],
        terms["logits_soft_cap"],
        terms["q_data_type"],
        causal,
    )


def launch(compute: Act) -> None:
    """Compute, as one kernel of a step that is captured if one is."""
    mode = _get_current_dispatch_mode()
    if isinstance(mode, Tape):
        mode.launch(compute)
    else:
        compute()


def attended(plan: Plan, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return softmax(scores) of some queries, which are the last of the keys' sequence."""
    group = plan.num_qo_heads // plan.num_kv_heads
    keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * plan.sm_scale
    if plan.logits_soft_cap:
        scores = plan.logits_soft_cap * (scores / plan.logits_soft_cap).tanh()
    at = torch.arange(len(keys) - len(queries), len(keys))[:, None]
    other = torch.arange(len(keys))
    hidden = other > at if plan.causal else torch.zeros(len(queries), len(keys), dtype=torch.bool)
    if plan.window_left >= 0:
        hidden |= other < at - plan.window_left
    weights = scores.masked_fill_(hidden, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def require(is_right: bool, what: str) -> None:
    """Raise ValueError, as FlashInfer does or should, unless `is_right`."""
    if not is_right:
        raise ValueError(f"flashinfer: {what}")


class KernelScene(Scene):
    """What a window has passed, and shares a block with what it has not, is finite: a kernel
    multiplies it by zero, and a request has computed it itself."""

    def fill(self, store: KVStore, paging: Paging) -> None:
        super().fill(store, paging)
        for number, sequence in enumerate(self.sequences):
            first = self.layer.pattern.first_needed(sequence.span.num_past)
            for position in range(first - first % store.block_size, first):
                slot = paging.slot(number, position, self.group)
                for kept in (store.keys[self.place], store.values[self.place]):
                    if kept is not None:
                        look(kept.elements, slot)[:] = FINITE
