"""FlashInfer's adapter, on a stand-in of its API: what it is given is right in shape, type and
place, and what is attended is what every backend must attend. Keys and values are written by
Triton's kernel, under the interpreter.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.models.attention.backend import Site
from quire.models.attention.choice import attention_name, build_attention
from quire.models.config import AttentionBackendName, KVCacheDtype, KVOptions, LayerFacts
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import KVStore
from tests.models.attention.flashinfer_stand_in import ALL, Kernels, Machine, installed
from tests.models.attention.scene import Scene, Shape, Span, put
from tests.models.attention.test_backends import assert_close, assert_right
from tests.profiles import cases

pytest.importorskip("triton", reason="triton is not installed")

FLASHINFER = AttentionBackendName.FLASHINFER
CPU = torch.device("cpu")
PLAIN = Shape(head_dim=64, v_head_size=64, dtype=torch.float16)
flashinfer = partial(build_attention, requested=FLASHINFER)


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    with installed(Machine()) as machine:
        yield machine


class KernelScene(Scene):
    """A window's first block holds what was written before: a kernel multiplies it by zero."""

    def fill(self, store: KVStore, paging: Paging) -> None:
        super().fill(store, paging)
