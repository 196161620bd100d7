"""The functions of sampling.cpp over tensors: sampling one token of each row, and scores."""

import ctypes
from array import array
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.native.library import Library

NUM_PARAMS = 6
"""The fields of `RowParams` of abi.h, in this order: noise, temperature, top_k, top_p, log_min_p,
num_top."""


class LogitEdits(NamedTuple):
    """Logits that replace the model's.

    Those of row i are `ids` int64 and `values` float32 from `starts[i]` to before `starts[i + 1]`;
    `starts` is int64 [rows + 1]. No id comes twice in a row.
    """

    starts: Tensor
    ids: Tensor
    values: Tensor


class TokenMasks(NamedTuple):
    """The tokens that some rows may sample, whatever their logits are.

    rows: int64 [masked rows], the indices of these rows, rising.
    masks: int32 [masked rows, num_mask_words(vocab_size)]; bit i of word w is token 32 w + i.
    """

    rows: Tensor
    masks: Tensor


def num_mask_words(vocab_size: int) -> int:
    """Return the words of 32 bits in the mask of a row."""
    return -(-vocab_size // 32)


class SamplingMetadata(NamedTuple):
    """The sampling parameters of all rows: NUM_PARAMS each, whose num_top is at most `max_top`."""

    params: "array[float]"
    max_top: int
    edits: LogitEdits | None = None
    masks: TokenMasks | None = None


class SampledTokens(NamedTuple):
    """The sampled tokens of all rows.

    token_ids: int64 [rows], -1 where nothing can be sampled.
    logprobs: float64 [rows], the log probabilities of these tokens.
    top_ids, top_logprobs: int64 and float64 [rows, max_top], the likeliest tokens.

    Values that a row did not request are undefined.
    """

    token_ids: Tensor
    logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


class SamplingKernel:
    """Samples by sampling.cpp, on as many threads as torch uses.

    It keeps the threads' memory, 32 bytes for each logit of a row. `logits` [rows, vocab_size] are
    on the CPU, of any float dtype, and only read.
    """

    def __init__(self, library: Library, vocab_size: int) -> None:
        self._library = library
        self._vocab_size = vocab_size
        self._new_call = library.struct("SamplingCall")
        self._sample = library.function("quire_sample")
        self._num_bytes = library.function("quire_sampling_memory")
        self._memory = torch.empty(0, dtype=torch.int64)

    @property
    def working_bytes(self) -> int:
        """The bytes that are kept once something was sampled."""
        call = self._new_call(vocab_size=self._vocab_size, num_threads=self._library.num_threads)
        return self._num_bytes(call) * self._library.num_threads

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SampledTokens:
        """Sample one token of each row of `logits`, which are only read.

        Edits come before masks. Raises ValueError for logits of another shape or device, and for
        masks of another size, and IndexError for ids beyond the vocabulary, as `score` does.
        """
        token_ids = torch.empty(len(logits), dtype=torch.int64)
        params, _ = metadata.params.buffer_info()
        call = self._new_call(params=params, max_top=metadata.max_top)
        if metadata.edits is not None:
            self._check_ids(metadata.edits.ids)
            call.edit_starts = metadata.edits.starts.data_ptr()
            call.edit_ids = metadata.edits.ids.data_ptr()
            call.edit_values = metadata.edits.values.data_ptr()
        if metadata.masks is None:
            return self._run(call, logits, token_ids)
        mask_indices = self._mask_indices(metadata.masks, len(logits))
        masks = metadata.masks.masks.contiguous()
        call.mask_indices, call.masks = mask_indices.data_ptr(), masks.data_ptr()
        return self._run(call, logits, token_ids)

    def score(self, logits: Tensor, token_ids: Tensor, num_top: int) -> SampledTokens:
        """Score one given token of each row, int64 [rows], and the `num_top` likeliest.

        Log probabilities are NaN where a row is not finite.
        """
        self._check_ids(token_ids)
        return self._run(self._new_call(max_top=num_top), logits, token_ids)

    def _mask_indices(self, masks: TokenMasks, num_rows: int) -> Tensor:
        """Return for each row the index of its mask, or -1. Raises ValueError for other sizes."""
        shape = (len(masks.rows), num_mask_words(self._vocab_size))
        if masks.masks.shape != shape or masks.masks.dtype != torch.int32:
            raise ValueError(
                f"masks are {masks.masks.dtype} {tuple(masks.masks.shape)}, must be int32 {shape}"
            )
        indices = torch.full((num_rows,), -1)
        return indices.index_copy_(0, masks.rows, torch.arange(len(masks.rows)))

    def _check_ids(self, ids: Tensor) -> None:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._vocab_size:
            raise IndexError(f"an id is not within the vocabulary of {self._vocab_size}")

    def _run(self, call: ctypes.Structure, logits: Tensor, token_ids: Tensor) -> SampledTokens:
        if logits.device.type != "cpu" or logits.shape[1] != self._vocab_size:
            raise ValueError(
                f"{tuple(logits.shape)} on {logits.device}: must be {self._vocab_size} wide "
                "and on the CPU"
            )
        if logits.dtype not in (torch.bfloat16, torch.float32):
            logits = logits.float()
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        num_rows, max_top = len(logits), call.max_top
        sampled = SampledTokens(
            token_ids,
            torch.empty(num_rows, dtype=torch.float64),
            torch.empty(num_rows, max_top, dtype=torch.int64),
            torch.empty(num_rows, max_top, dtype=torch.float64),
        )
        for name, tensor in zip(SampledTokens._fields, sampled, strict=True):
            setattr(call, name, tensor.data_ptr())
        call.logits, call.row_stride = logits.data_ptr(), logits.stride(0)
        call.is_bf16 = logits.dtype is torch.bfloat16
        call.num_rows, call.vocab_size = num_rows, self._vocab_size
        call.num_threads = self._library.num_threads
        call.memory = self._memory_address()
        self._sample(call)
        return sampled

    def _memory_address(self) -> int:
        needed = self.working_bytes
        if self._memory.nbytes < needed:
            self._memory = torch.empty(needed // 8, dtype=torch.int64)
        return self._memory.data_ptr()
