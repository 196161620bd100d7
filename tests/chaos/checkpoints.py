"""A checkpoint with the bundled model's weights and code of its own that breaks on order."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.mix import NEVER_SAMPLED

BUNDLED = Path(__file__).parents[2] / "src/quire/models/bundled"
CODE = Path(__file__).with_name("faulty_llama.py")
ABORT, HANG, NAN, RAISE, MEMORY = NEVER_SAMPLED
FAULTS: Mapping[int, str] = {
    ABORT: "abort",
    HANG: "hang",
    NAN: "nan",
    RAISE: "raise",
    MEMORY: "memory",
}
"""The faults by the token that calls for them."""


@dataclass(frozen=True, slots=True)
class FaultyCheckpoint:
    """A folder to serve, and the folder in which faults are planned."""

    folder: Path
    plan: Path

    @property
    def flags(self) -> tuple[str, ...]:
        return (str(self.folder), "--trust-remote-code", "--served-model-name", "faulty")

    def plan_fault(self, num_forwards: int, fault: str) -> None:
        """Let the engine that next makes so many forwards do this then, once."""
        (self.plan / f"{num_forwards}-{fault}").touch()

    @property
    def is_struck(self) -> bool:
        """Whether all that was planned has happened."""
        return not any(self.plan.iterdir())


def save_faulty(folder: Path) -> FaultyCheckpoint:
    made = FaultyCheckpoint(folder / "faulty", folder / "plan")
    shutil.copytree(BUNDLED, made.folder, ignore=shutil.ignore_patterns("*.py", "*.md", "__py*"))
    made.plan.mkdir()
    shutil.copy(CODE, made.folder)
    path = made.folder / "config.json"
    config = json.loads(path.read_text())
    name = "FaultyForCausalLM"
    config |= {
        "architectures": [name],
        "auto_map": {"AutoModelForCausalLM": f"faulty_llama.{name}"},
    }
    config |= {"faults": FAULTS, "fault_plan": str(made.plan)}
    path.write_text(json.dumps(config))
    return made
