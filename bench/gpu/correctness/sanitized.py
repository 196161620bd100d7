"""The program that compute-sanitizer runs: `python -m bench.gpu.correctness.sanitized --device D`.

It computes a step of decodes and prefills, and ends with 1 if anything of the store has changed
that was not to be written, or a result is no number.
"""

import argparse
import sys

import torch
from tests.models.attention.scene import Scene, Shape, Span
from torch import Tensor

from quire.models.attention.choice import build_attention
from quire.models.config import AttentionBackendName

SPANS = [Span(0, 21), Span(40, 1), Span(0, 1), Span(31, 9)]


@torch.inference_mode()
def main() -> int:
    """Compute the step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", required=True)
    shape = Shape(num_heads=8, num_kv_heads=2, window_size=33, device=parser.parse_args().device)
    scene = Scene(shape, SPANS)
    paging = scene.paging()
    store = scene.store(paging)
    batch = scene.batch(paging)
    before = [tensor.clone() for tensor in store.tensors]
    step = build_attention(store, AttentionBackendName.TRITON).begin(batch)
    out = scene.attend(step)
    written = batch.slots[scene.table]
    pairs = zip(store.tensors, before, strict=True)
    is_kept = all(_is_same_elsewhere(kept, old, written) for kept, old in pairs)
    return 0 if is_kept and bool(out.isfinite().all()) else 1


def _is_same_elsewhere(kept: Tensor, old: Tensor, written: Tensor) -> bool:
    """Return whether all slots but those written are as before."""
    rows, old_rows = kept.flatten(0, 1), old.flatten(0, 1)
    is_other = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    is_other[written] = False
    return torch.equal(rows[is_other].nan_to_num(-1.0), old_rows[is_other].nan_to_num(-1.0))


if __name__ == "__main__":
    sys.exit(main())
