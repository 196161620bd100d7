"""The models that are changed: two GGUF files, and a folder of safetensors in two files."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import gguf

from tests.models.checkpoints import save_checkpoint
from tests.models.families import DENSE, SERVED, Family
from tests.models.loading.gguf.writer import write_model
from tests.models.loading.hostile import folder_mutations, gguf_mutations, gguf_parts
from tests.models.loading.hostile.gguf_parts import ARRAY, STRING, number, numbers, string, texts

if TYPE_CHECKING:
    from tests.models.loading.hostile.outcome import Outcome

KINDS = ("gguf", "folder")
SIZE = 101
SPACE = "\u2581".encode()
_TEMPLATE = string(b"{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
_LETTERS = [b"%c" % code for code in range(33, 127)]
_WORDS = [*_LETTERS, *(b"<%d>" % i for i in range(SIZE - 1 - len(_LETTERS))), b"ab"]
BYTE_LEVEL = {
    "ggml.tokens": (ARRAY, texts(_WORDS)),
    "ggml.token_type": (ARRAY, numbers(5, [1] * SIZE)),
    "ggml.merges": (ARRAY, texts([b"a b"])),
    "ggml.bos_token_id": (4, number(4, 1)),
    "ggml.eos_token_id": (4, number(4, 2)),
    "chat_template": (STRING, _TEMPLATE),
}
"""The values of a byte-level tokenizer: the number of each type, and its bytes."""
_FIRST = [b"<pad>", b"<eos>", b"<bos>", b"<unk>", SPACE, *_LETTERS[64:72], b"ab", SPACE + b"a"]
PIECES = {
    "ggml.model": (STRING, string(b"llama")),
    "ggml.tokens": (ARRAY, texts([*_FIRST, *(b"<%d>" % i for i in range(SIZE - len(_FIRST)))])),
    "ggml.token_type": (ARRAY, numbers(5, [3, 3, 3, 2, *[1] * (SIZE - 4)])),
    "ggml.scores": (ARRAY, numbers(6, [-float(i) for i in range(SIZE)])),
    "ggml.add_space_prefix": (7, number(7, 0)),
    **{
        f"ggml.{name}_token_id": (4, number(4, i))
        for i, name in enumerate(("padding", "eos", "bos", "unknown"))
    },
}
"""Metadata keys of a tokenizer as SentencePiece has it."""


class Originals:
    """The models in a folder, and what is made of them there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self) -> None:
        """Write the models."""
        llama = save_checkpoint(SERVED["llama"], self.folder / "llama")
        kind = gguf.GGMLQuantizationType.F16
        write_model(llama, self.folder / "0.gguf", "llama", kind=kind)
        self._put_tokenizer("0.gguf", BYTE_LEVEL)
        sizes = {"head_dim": 16, "query_pre_attn_scalar": 16, "hidden_size": 64}
        family = SERVED["gemma3_text"]._replace(fields={**SERVED["gemma3_text"].fields, **sizes})
        gemma = save_checkpoint(family, self.folder / "gemma")
        more, kind = {"attention.sliding_window": 9}, gguf.GGMLQuantizationType.Q4_0
        write_model(gemma, self.folder / "1.gguf", "gemma3", kind=kind, more=more)
        self._put_tokenizer("1.gguf", PIECES)
        self._write_parts()

    def _put_tokenizer(self, name: str, values: Mapping[str, tuple[int, bytes]]) -> None:
        """Give a file another tokenizer."""
        file = self.folder / name
        parts = gguf_parts.taken_apart(file.read_bytes())
        for key, (kind, content) in values.items():
            parts.put(f"tokenizer.{key}", kind, content)
        file.write_bytes(parts.written())

    def _write_parts(self) -> None:
        """Write a folder of safetensors with an index."""
        from transformers import AutoModelForCausalLM

        whole = save_checkpoint(Family("llama", fields=DENSE), self.folder / "whole")
        model = AutoModelForCausalLM.from_pretrained(whole)
        model.save_pretrained(self.folder / "parts", max_shard_size="60KB")
        source = sorted((self.folder / "parts").glob("*.safetensors"))
        shutil.copy(source[0], self.folder / "outside.safetensors")

    def attack(self, kind: str, seed: int) -> "tuple[str, Outcome]":
        """Load what a seed makes of a model, and return the name of the change too. Folders that
        stand for GGUF files must be made in `hf` here."""
        from tests.models.loading.hostile.outcome import outcome_of

        if kind == "gguf":
            content = (self.folder / f"{seed % 2}.gguf").read_bytes()
            name, changed = gguf_mutations.mutated(seed, content)
            file = self.folder / f"changed-{seed}.gguf"
            file.write_bytes(changed)
            try:
                return name, outcome_of(file, has_tokenizer=True)
            finally:
                file.unlink()
                shutil.rmtree(self.folder / "hf", ignore_errors=True)
        folder = self.folder / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            name = folder_mutations.mutate(seed, self.folder / "parts", folder)
            return name, outcome_of(folder, has_tokenizer=False)
        finally:
            shutil.rmtree(folder)
