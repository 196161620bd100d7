"""Calls of the C++ kernels of `models/native/recurrent`: their structures, states and scratch
memory."""

import ctypes

import torch
from torch import Tensor

from quire.models.native.library import Library
from quire.models.recurrent.pieces import Pieces

NATIVE_DTYPES = (torch.float32, torch.bfloat16)
"""The dtypes of inputs and results."""
CALLS = {
    "convolution": "ConvolutionCall",
    "delta_rule": "DeltaRuleCall",
    "delta_net": "DeltaNetCall",
    "scan": "ScanCall",
}
"""The functions that take a call, and its structure in abi.h."""
WITH_SCRATCH = ("convolution", "delta_rule", "scan")


class NativeCalls:
    """Makes and runs calls on as many threads as torch uses. The scratch memory of each function is
    kept."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._structs = {name: library.struct(struct) for name, struct in CALLS.items()}
        self._store = library.struct("StateStore")
        self._functions = {name: library.function(f"quire_{name}") for name in CALLS}
        self._count_scratch = {
            name: library.function(f"quire_{name}_scratch") for name in WITH_SCRATCH
        }
        self._scratch_bytes: dict[tuple[object, ...], int] = {}
        self._scratch = {name: torch.empty(0, dtype=torch.uint8) for name in WITH_SCRATCH}
        self._pieces: tuple[Pieces, ctypes.Structure] | None = None

    def new(self, name: str, **fields: object) -> ctypes.Structure:
        """Return a call of a function."""
        return self._structs[name](**fields)

    def use_states(
        self,
        name: str,
        call: ctypes.Structure,
        rows: Tensor,
        states: Tensor,
        shape: tuple[int, ...],
        pieces: Pieces,
    ) -> ctypes.Structure:
        """Let a call with the inputs `rows` work on states of a shape; return a structure that it
        needs until it has run. Raises ValueError for states, rows or pieces that are not as they
        must be."""
        if rows.dtype not in NATIVE_DTYPES:
            raise ValueError(f"the kernels have no {rows.dtype}, but float32 and bfloat16")
        num_states = states.shape[0]
        check_tensor("states", states, torch.float32, (num_states, *shape))
        if not is_dense(states):
            raise ValueError("each of the states must be contiguous")
        store = self._store(states.data_ptr(), num_states, states.stride(0))
        tables = self._tables_of(pieces)
        tables.num_tokens = rows.shape[0]
        call.pieces, call.store = ctypes.addressof(tables), ctypes.addressof(store)
        call.is_bf16, call.num_threads = rows.dtype is torch.bfloat16, self._library.num_threads
        call.scratch = self._scratch_address(name, call, shape)
        return store

    def run(self, name: str, call: ctypes.Structure, *stores: ctypes.Structure) -> None:
        """Run a call. Raises IndexError, and has written nothing, if its pieces lie outside of its
        rows, or outside of its `stores`."""
        if self._functions[name](call):
            counts = " and ".join(str(store.num_states) for store in stores)
            raise IndexError(f"pieces lie outside of the rows, or outside of the {counts} states")

    def _tables_of(self, pieces: Pieces) -> ctypes.Structure:
        """Return the structure of the pieces, which all layers of a step share."""
        if self._pieces is None or self._pieces[0] is not pieces:
            self._pieces = (pieces, piece_tables(self._library, pieces))
        return self._pieces[1]

    def _scratch_address(self, name: str, call: ctypes.Structure, shape: tuple[int, ...]) -> int:
        """Return the address of memory for all threads of the call."""
        key = (name, *shape)
        if key not in self._scratch_bytes:
            self._scratch_bytes[key] = self._count_scratch[name](call)
        needed = self._scratch_bytes[key] * call.num_threads
        if self._scratch[name].nbytes < needed:
            self._scratch[name] = torch.empty(needed, dtype=torch.uint8)
        return self._scratch[name].data_ptr()


def piece_tables(library: Library, pieces: Pieces) -> ctypes.Structure:
    """Return the structure of pieces, without the number of tokens. Raises ValueError for tensors
    that are not as they must be."""
    num_pieces, num_seqs = len(pieces.reads), len(pieces.sequences) - 1
    for name, tensor, length in (
        ("starts", pieces.starts, num_pieces + 1),
        ("reads", pieces.reads, num_pieces),
        ("writes", pieces.writes, num_pieces),
        ("sequences", pieces.sequences, num_seqs + 1),
    ):
        check_tensor(name, tensor, torch.int32, (length,))
        if not tensor.is_contiguous():
            raise ValueError(f"{name} of the pieces must be contiguous")
    return library.struct("StatePieces")(
        pieces.starts.data_ptr(),
        pieces.reads.data_ptr(),
        pieces.writes.data_ptr(),
        pieces.sequences.data_ptr(),
        num_pieces,
        num_seqs,
    )


def check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raise ValueError for a tensor of another dtype or shape, or not on the CPU."""
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_cpu:
        raise ValueError(
            f"{name}: {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, must be {dtype} "
            f"{shape} on the CPU"
        )


def dense(rows: Tensor) -> Tensor:
    """Return rows that are contiguous each, however far they lie apart."""
    return rows if is_dense(rows) else rows.contiguous()


def is_dense(rows: Tensor) -> bool:
    """Return whether each of the rows is contiguous, however far they lie apart."""
    if rows.is_contiguous():
        return True
    strides, shape = rows.stride()[1:], rows.shape[1:]
    return strides[-1] == 1 and all(
        strides[i] == strides[i + 1] * shape[i + 1] or shape[i] == 1 for i in range(len(shape) - 1)
    )
