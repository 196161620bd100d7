"""A checkpoint with code of its own: the bundled model, but for two tokens that it cannot take."""

import json
import shutil
from importlib.resources import files
from pathlib import Path

CRASHES, HANGS = 2000, 2001
"""A step with the first of these tokens aborts the process; with the second it does not end."""
CODE = f"""
import os
import time

from torch import nn
from transformers import LlamaForCausalLM, LlamaModel


class Guard(nn.Module):
    def forward(self, ids):
        if (ids == {CRASHES}).any():
            os.abort()
        if (ids == {HANGS}).any():
            time.sleep(3600)


class CrashingModel(LlamaModel):
    def forward(self, input_ids=None, **kwargs):
        self.guard(input_ids)
        return super().forward(input_ids=input_ids, **kwargs)


class CrashingForCausalLM(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.model.__class__ = CrashingModel
        self.model.guard = Guard()
"""


def write_crashing_checkpoint(folder: Path) -> Path:
    """Write the checkpoint; it needs `--trust-remote-code`."""
    shutil.copytree(str(files("quire.models") / "bundled"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["CrashingForCausalLM"]
    config["auto_map"] = {"AutoModelForCausalLM": "crashing.CrashingForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "crashing.py").write_text(CODE)
    return folder
