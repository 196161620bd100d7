"""The fingerprint of an engine: a digest of all that the bytes of its keys, values and states
depend on beside tokens. Blocks on disk of another fingerprint are not found.

The weights are hashed whole, since a fine-tune differs in nothing else. A digest is kept beside the
blocks for as long as a file is the same by size, times and inode.
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from xxhash import xxh3_128

from quire.cache.layout import Layout
from quire.engine.config import TOY_MODEL, EngineConfig
from quire.engine.messages import EngineFacts
from quire.storage.disk.extent_file import FORMAT

HASHED = ("*.safetensors", "*.gguf", "*.bin", "*.pt", "*.pth", "config.json", "**/*.py")
"""The files of a checkpoint that make its numbers."""
CHUNK_BYTES = 4 << 20
NUM_THREADS = 2
LIBRARIES = ("quire", "torch", "transformers")
"""Other versions may compute other numbers, or keep them otherwise."""


def fingerprint_of(
    config: EngineConfig, facts: EngineFacts, layout: Layout, state_form: str, memo_folder: Path
) -> bytes:
    """Return the fingerprint, 32 bytes. The model that `config` names is a folder by now, or the
    toy; its states have `state_form`, as `BlockRowsModel` says. Digests of weights are kept in
    `memo_folder`. Raises OSError where these cannot be read."""
    model = config.model
    is_toy = model.model == TOY_MODEL
    said: dict[str, object] = {
        "format": FORMAT,
        "libraries": {name: version(name) for name in LIBRARIES},
        "files": {} if is_toy else checkpoint_digests(Path(model.model), memo_folder),
        "model_type": facts.model_type,
        "device": facts.device.partition(":")[0],
        "dtype": facts.dtype,
        "kv_dtype": facts.memory.kv_dtype,
        "quantization": facts.quantization,
        "kernels": [facts.attention, facts.experts, str(model.linear_backend)],
        "disabled": sorted(map(str, model.disable_optimizations)),
        "block_size": facts.block_size,
        "groups": repr(layout.groups),
        "tensors": repr(layout.tensors),
        "states": state_form,
    }
    return sha256(json.dumps(said, sort_keys=True).encode()).digest()


def checkpoint_digests(folder: Path, memo_folder: Path) -> dict[str, str]:
    """Return the digests of a checkpoint's files by their names in it."""
    memo_path = memo_folder / f".weights-{sha256(str(folder.resolve()).encode()).hexdigest()}.json"
    known = _read_memo(memo_path)
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        futures = {
            str(path.relative_to(folder)): threads.submit(_digest_by_identity, path, known)
            for path in _files(folder)
        }
    found = {name: future.result() for name, future in futures.items()}
    memo = {identity: digest for identity, digest in found.values()}
    if memo != known:
        _write_memo(memo_path, memo)
    return {name: digest for name, (_, digest) in found.items()}


def _files(folder: Path) -> Iterator[Path]:
    paths = {path for pattern in HASHED for path in folder.glob(pattern) if path.is_file()}
    yield from sorted(paths)


def _digest_by_identity(path: Path, known: Mapping[str, str]) -> tuple[str, str]:
    """Return the identity of a file, and the digest of its content."""
    status = path.stat()
    times = (status.st_mtime_ns, status.st_ctime_ns)
    identity = json.dumps(
        [str(path.resolve()), status.st_dev, status.st_ino, status.st_size, *times]
    )
    digest = known.get(identity)
    return identity, _digest(path) if digest is None else digest


def _digest(path: Path) -> str:
    checksum = xxh3_128()
    buffer = bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while num_read := file.readinto(buffer):
            checksum.update(memoryview(buffer)[:num_read])
    return checksum.hexdigest()


def _read_memo(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _write_memo(path: Path, memo: Mapping[str, str]) -> None:
    """Keep the digests, if that can be done."""
    temporary = path.with_suffix(f".{secrets.token_hex(8)}")
    with suppress(OSError):
        temporary.write_text(json.dumps(memo), encoding="utf-8")
        os.replace(temporary, path)
