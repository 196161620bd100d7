"""`/metrics` of one moment, and what must hold of it: after another, and when nothing runs."""

from collections.abc import Iterable
from dataclasses import dataclass

COUNTERS = ("_total", "_count", "_bucket", "_sum")
OF_ENGINE = ("quire:engine_process_", "quire:engine_standby_process_")
"""Series of the processes of engines, which begin again with new ones."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The samples by name and labels, as they are written."""

    samples: dict[str, float]

    def sum(self, name: str, **labels: str) -> float:
        """Sum the samples of a metric that have these labels. Raises KeyError where there is
        none."""
        found = [
            value
            for sample, value in self.samples.items()
            if sample.partition("{")[0] == name
            and all(f'{label}="{told}"' in sample for label, told in labels.items())
        ]
        if not found:
            raise KeyError(f"no sample of {name} {labels}")
        return sum(found)

    def get(self, name: str) -> float | None:
        """Return the same, or None where there is no sample."""
        try:
            return self.sum(name)
        except KeyError:
            return None


def metrics_of(text: str) -> Metrics:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return Metrics({name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)})


def gone_back(before: Metrics, after: Metrics) -> list[str]:
    """Name the counters that are less than they were, or are there no more."""
    found = []
    for sample, was in before.samples.items():
        name = sample.partition("{")[0]
        if not name.endswith(COUNTERS) or name.startswith(OF_ENGINE):
            continue
        now = after.samples.get(sample)
        if now is None or now < was:
            found.append(f"{sample} was {was} and is {now}")
    return found


def not_idle(now: Metrics) -> list[str]:
    """Say what is not at rest of a server that has no requests."""
    held = {
        "running": now.sum("quire:num_requests_running"),
        "waiting": now.sum("quire:num_requests_waiting"),
        "blocks of requests": now.sum("quire:kv_blocks", state="active"),
        "swapped blocks": now.sum("quire:kv_blocks", state="swapped"),
        "lines of batches": now.sum("quire:batch_lines_running"),
        "bodies to read": now.sum("quire:input_bodies_waiting"),
        "half-read bytes": now.sum("quire:http_half_read_bytes"),
    }
    found = [f"{number:g} {name}" for name, number in held.items() if number]
    blocks = sum(now.sum("quire:kv_blocks", state=state) for state in _home_states(now))
    (said,) = _labels(now, "quire:cache_config_info", "num_gpu_blocks")
    if blocks != int(said) - 1:  # one is the null block
        found.append(f"{blocks:g} of {int(said) - 1} blocks are home")
    return found


def _home_states(now: Metrics) -> set[str]:
    """The states of the device's blocks that belong to no request."""
    return {"free", "cached", "pinned"} & set(_labels(now, "quire:kv_blocks", "state"))


def _labels(now: Metrics, name: str, label: str) -> list[str]:
    return [
        sample.split(f'{label}="', 1)[1].split('"', 1)[0]
        for sample in now.samples
        if sample.partition("{")[0] == name
    ]


ENDS = "quire:request_success_total"


@dataclass(frozen=True, slots=True)
class Tally:
    """The accounts of all clients together: HTTP requests that were sent whole, and those of which
    the server may have seen enough to count them; ends of engine requests, one for each choice,
    that there must be, and that there may be at most (a client that goes early does not know)."""

    num_sent: int
    num_unsure: int
    least_ends: int
    most_ends: int


def unbalanced(before: Metrics, after: Metrics, tally: Tally) -> list[str]:
    """Say which accounts of the server are not those of its clients."""
    counted = _grown(before, after, "http_requests_total")
    ended = _grown(before, after, ENDS)
    found = []
    if not tally.num_sent <= counted <= tally.num_sent + tally.num_unsure:
        found.append(f"{counted:g} HTTP requests of {tally.num_sent} + {tally.num_unsure}")
    if not tally.least_ends <= ended <= tally.most_ends:
        found.append(f"{ended:g} ends of {tally.least_ends} to {tally.most_ends} requests")
    return found


def _grown(before: Metrics, after: Metrics, name: str, **labels: str) -> float:
    def value(metrics: Metrics) -> float:
        try:
            return metrics.sum(name, **labels)
        except KeyError:
            return 0.0

    return value(after) - value(before)


def joined(*found: Iterable[str]) -> list[str]:
    return [each for some in found for each in some]
