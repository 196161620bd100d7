"""Reads what a result must say of the machine, and how busy it was; no host names, no paths."""

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

TELLING_CPU_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "bf16",
    "sve",
)
WATCH_S = 3.0
L3_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
ABSOLUTE_FOLDER = re.compile(r"(?<![\w.])[~.]{0,2}/(?:[^\s/=,]+/)*(?=[^\s/=,])")


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware that a figure holds for."""

    cpu: str
    num_cores: int
    cpu_flags: tuple[str, ...]
    l3_mib: float
    memory_gib: float

    def describe(self) -> str:
        """One line."""
        flags = ", ".join(self.cpu_flags) or "none of interest"
        return (
            f"{self.num_cores} cores of {self.cpu} ({flags}), "
            f"L3 {self.l3_mib:.0f} MiB, {self.memory_gib:.0f} GiB memory"
        )


def _cpuinfo() -> dict[str, str]:
    """The fields of the first CPU; of a repeated field, the last."""
    fields = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in fields}


def _l3_mib() -> float:
    """Size of the last-level cache, zero where the kernel does not tell."""
    if not L3_SIZE.exists():
        return 0.0
    return int(L3_SIZE.read_text().strip().removesuffix("K")) / 1024


def read_machine() -> Machine:
    """Describe the machine that this process runs on."""
    fields = _cpuinfo()
    flags = f"{fields.get('flags', '')} {fields.get('features', '')}".split()
    return Machine(
        cpu=fields.get("model name", "unknown CPU"),
        num_cores=len(os.sched_getaffinity(0)),
        cpu_flags=tuple(flag for flag in TELLING_CPU_FLAGS if flag in flags),
        l3_mib=_l3_mib(),
        memory_gib=psutil.virtual_memory().total / 2**30,
    )


def busy_s() -> float:
    """CPU seconds that the whole machine has been busy, what a hypervisor took included."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def busy_cores() -> float:
    """Return how many cores programs take, watched for some seconds."""
    began_s = busy_s()
    time.sleep(WATCH_S)
    return (busy_s() - began_s) / WATCH_S


def read_commit(repository: Path) -> str:
    """The short commit hash, with `-dirty` where the tree differs in more than the results."""
    git = ("git", "-C", str(repository))
    try:
        commit, changed = (
            subprocess.run([*git, *command], capture_output=True, text=True, check=True).stdout
            for command in (
                ("rev-parse", "--short=10", "HEAD"),
                ("status", "--porcelain", "--", ".", ":!bench/RESULTS.md", ":!bench/records"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return commit.strip() + ("-dirty" if changed else "")


def without_folders(text: str) -> str:
    """The text with each path cut to its last part, fit to be published."""
    return ABSOLUTE_FOLDER.sub("", text)
