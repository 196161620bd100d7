"""Makes the folder that stands for a GGUF file: the configuration, the tokenizer and the chat
template that its metadata tell, as transformers keeps them, and links to its parts.

All that comes after takes it for any other model's folder. It is made once for a file, in the cache
of Hugging Face (`HF_HOME`), and known by the file's path, size and time.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from quire.models.config import CheckpointError
from quire.models.loading.gguf.architectures import EMBEDDING, Config, build_config
from quire.models.loading.gguf.fields import Fields
from quire.models.loading.gguf.parts import part_files, read_model
from quire.models.loading.gguf.place import WEIGHTS, PartName, is_gguf_folder
from quire.models.loading.gguf.tokenizer import CONTROL, PREFIX, build_tokenizer

MADE_BY = 2
"""The version of the folder's content; folders of other versions are made again."""
END_TEXTS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "</s>"}
    | {"<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>", "<|end_of_turn|>", "<eos>"}
    | {"<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>"}
)
"""Control tokens that end an answer, whichever of them a file names: chats end by another one than
texts do, and files have room for one."""


def folder_for(file: Path) -> Path:
    """Return the folder that stands for a GGUF file, made if need be. Raises CheckpointError."""
    fields = Fields(read_model(file))
    parts = part_files(fields.header)
    folder = _cache() / f"{file.stem}-{_key(parts)}"
    if not is_gguf_folder(folder):
        files = dict(_files(fields))
        try:
            _make(folder, parts, files)
        except OSError as error:
            raise CheckpointError(
                f"{folder} cannot be written, where the configuration and tokenizer of {file} are "
                f"kept: {error.strerror}; set HF_HOME to a folder that can be"
            ) from error
    return folder


def _cache() -> Path:
    from huggingface_hub import constants  # slow to import

    return Path(constants.HF_HOME) / "quire" / "gguf"


def _key(parts: Sequence[Path]) -> str:
    told = hashlib.sha256()
    for file in parts:
        stat = file.stat()
        told.update(f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{MADE_BY}".encode())
    return told.hexdigest()[:16]


def _files(fields: Fields) -> Iterator[tuple[str, str]]:
    """Yield the files of the folder by name."""
    config = build_config(fields)
    config["dtype"] = _dtype(fields)
    config["eos_token_id"] = ends = _ends(fields, config)
    yield "config.json", json.dumps(config, indent=2)
    named = {name: config[name] for name in ("bos_token_id", "pad_token_id") if config[name]}
    yield "generation_config.json", json.dumps({"eos_token_id": ends, **named}, indent=2)
    num_tokens, num_rows = len(fields.texts(f"{PREFIX}tokens")), config["vocab_size"]
    if num_tokens > int(str(num_rows)):
        raise fields.refusal(f"it has {num_tokens:,} tokens, and {EMBEDDING} {num_rows:,} rows")
    tokenizer = build_tokenizer(fields)
    yield "tokenizer.json", tokenizer.tokenizer
    yield "tokenizer_config.json", tokenizer.config
    if tokenizer.chat_template is not None:
        yield "chat_template.jinja", tokenizer.chat_template


def _dtype(fields: Fields) -> str:
    """Return the dtype that the matrices are stored in; bfloat16 where that is in blocks."""
    names = {each.type.name for each in fields.header.tensors if len(each.shape) > 1}
    plain = {"F32": "float32", "F16": "float16"}
    return plain.get(next(iter(names), ""), "bfloat16") if len(names) == 1 else "bfloat16"


def _ends(fields: Fields, config: Config) -> list[int]:
    """Return the tokens that end an answer, that of the file first."""
    tokens = fields.texts(f"{PREFIX}tokens")
    types = fields.numbers(f"{PREFIX}token_type", len(tokens))
    is_end = [each in END_TEXTS for each in tokens]
    ends = [] if types is None else np.flatnonzero(is_end & (types == CONTROL)).tolist()
    stated = [config["eos_token_id"]]
    stated += [fields.whole(f"{PREFIX}{name}_token_id", None) for name in ("eot", "eom")]
    known = [each for each in stated if isinstance(each, int) and each < len(tokens)]
    return list(dict.fromkeys([*known, *ends]))


def _make(folder: Path, parts: Sequence[Path], files: Mapping[str, str]) -> None:
    """Write the folder beside its place and move it there: others may make it at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for name, content in files.items():
            (made / name).write_text(content, encoding="utf-8")
        (made / WEIGHTS).symlink_to(parts[0].resolve())
        names = PartName(Path(WEIGHTS).stem, 1, len(parts)).all()
        for name, part in zip(names[1:], parts[1:], strict=True):
            (made / name).symlink_to(part.resolve())
        made.chmod(0o755)
        if folder.exists() and not (folder / WEIGHTS).exists():
            shutil.rmtree(folder)
        os.replace(made, folder)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not (folder / WEIGHTS).exists():
            raise
