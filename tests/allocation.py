"""What torch allocates."""

import json
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


def peak_bytes(act: Callable[[], object], trace: Path) -> int:
    """The most that was allocated at once meanwhile, torch's own temporaries included."""
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, profile_memory=True, acc_events=True) as profiler:
        act()  # `acc_events` changes nothing here, but torch 2.11 warns without it
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    taken = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    total = most = 0
    for _, size in taken:
        total += size
        most = max(most, total)
    return most
