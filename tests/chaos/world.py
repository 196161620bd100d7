"""The world that a server is made to see, with a wall clock and a disk of its own: `world.c`, laid
over its libc."""

import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("world.c")
NS = 1_000_000_000


@dataclass(slots=True)
class World:
    """`disk` is the folder that can be full. Changes are seen at once."""

    library: Path
    disk: Path
    state: Path
    clock_off_s: float = 0.0
    disk_is_full: bool = False

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables of the environment that let a process see it."""
        return {
            "LD_PRELOAD": str(self.library),
            "CHAOS_WORLD": str(self.state),
            "CHAOS_DISK": str(self.disk.resolve()),
        }

    def turn_clock(self, off_s: float) -> None:
        """Let the wall clock be so many seconds ahead."""
        self.clock_off_s = off_s
        self._write()

    def fill_disk(self, is_full: bool) -> None:
        self.disk_is_full = is_full
        self._write()

    def _write(self) -> None:
        with self.state.open("r+b") as file:
            file.write(struct.pack("=qq", int(self.clock_off_s * NS), self.disk_is_full))


def build_world(folder: Path) -> World | None:
    """Compile it into a folder; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library, disk, state = folder / "world.so", folder / "disk", folder / "world"
    disk.mkdir()
    state.write_bytes(bytes(16))
    asked = [compiler, "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(library), "-ldl"]
    subprocess.run(asked, check=True, capture_output=True, timeout=60)
    return World(library, disk, state)
