"""Loads a model of strangers as a server would, and tells what came of it."""

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from quire.engine.grammar.tokenizer_facts import TokenizerError
from quire.models.config import CheckpointError, ModelDtype, UnsupportedModel
from quire.models.loading import pretrained
from quire.models.loading.checkpoint import ModelSource, locate
from quire.models.loading.checks.extent import refuse_more_layers, refuse_more_weights
from quire.models.loading.preview import look_ahead
from quire.models.loading.weight_files import read_headers
from quire.models.target import Target
from quire.server.text.tokenizer import load_tokenizer

TARGET = Target(ModelDtype.FLOAT32, torch.device("cpu"))
MAX_LINE_CHARS = 2_000
MAX_BYTES = 96 << 20
"""Memory that may be taken beside the files, which have less than 1 MiB: headers of JSON of as
much, and the modules of Python that are loaded late."""
RSS = re.compile(r"VmRSS:\s+(\d+) kB")
PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A model was loaded, or refused by a line. It took `seconds` of processors, and at most
    `num_bytes` beyond what the process had before."""

    refusal: str | None
    seconds: float
    num_bytes: int

    def fault(self, *, max_seconds: float, max_bytes: int) -> str | None:
        """Return what is wrong with it, or None."""
        if self.refusal is not None and not self.refusal.strip():
            return "a refusal without a word"
        if self.refusal is not None and "\n" in self.refusal:
            return f"a refusal of several lines: {self.refusal}"
        if self.refusal is not None and len(self.refusal) > MAX_LINE_CHARS:
            return f"a refusal of {len(self.refusal):,} characters: {self.refusal[:200]}"
        if self.seconds > max_seconds:
            return f"{self.seconds:.1f} s"
        return f"{self.num_bytes:,} bytes of memory" if self.num_bytes > max_bytes else None


def outcome_of(model: Path, *, has_tokenizer: bool) -> Outcome:
    """Load a model and its tokenizer. Raises whatever is no refusal."""
    start_s = time.process_time()
    before = _memory(RSS)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    refusal = None
    try:
        _load(model, has_tokenizer=has_tokenizer)
    except (CheckpointError, UnsupportedModel, TokenizerError) as error:
        refusal = str(error)
    return Outcome(refusal, time.process_time() - start_s, _memory(PEAK) - before)


def _load(model: Path, *, has_tokenizer: bool) -> None:
    folder = locate(ModelSource(str(model)), lambda phase, done, total: None)
    if has_tokenizer:
        load_tokenizer(str(model), None)
    look_ahead(folder, TARGET, trust_remote_code=False)
    config = pretrained.read_config(folder, trust_remote_code=False)
    tensors = read_headers(folder)
    refuse_more_layers(folder, config.num_hidden_layers, tensors)
    skeleton = pretrained.build_without_weights(folder, config)
    refuse_more_weights(folder, skeleton, tensors)
    pretrained.load_lazy(folder, config, skeleton, torch.float32, lambda done, total: None)


def _memory(pattern: re.Pattern[str]) -> int:
    """Return a figure of this process's memory in bytes."""
    found = pattern.search(Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) * 1024 if found else 0


def opened_outside() -> list[str]:
    """Return a list that gets the path of each file that Python opens from now on and that no
    model may name."""
    found: list[str] = []

    def listen(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith(("passwd", "outside.safetensors")):
            found.append(str(arguments[0]))

    sys.addaudithook(listen)
    return found
