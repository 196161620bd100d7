"""The log of an acceptance run: JSON lines, one file for each stage, and a table of them.

A line is a run ("run": the machine), a finding ("what", "figures", "fault") or the end of a check
("status", "took_s", "tail"). Lines are added as they come, so that nothing found is lost when a
process dies.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.gpu.check import Figure, Finding
from bench.markdown import table


class Status(StrEnum):
    """The ways in which the process of a check ends."""

    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class End:
    """The end of a check, `took_s` seconds after its process began. `tail` is the last of what it
    printed, unless it passed."""

    check: str
    status: Status
    took_s: float
    tail: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A check that ended, and what it had found by then."""

    end: End
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Log:
    """The log of one stage, a file that only grows."""

    path: Path

    def add_run(self, facts: Mapping[str, Figure]) -> None:
        self._add({"run": dict(facts)})

    def add_finding(self, check: str, finding: Finding) -> None:
        self._add({"check": check, **asdict(finding)})

    def add_end(self, end: End) -> None:
        self._add(asdict(end))

    def last_run(self) -> dict[str, Figure]:
        """Return the machine of the last run."""
        runs = [line["run"] for line in self._lines() if "run" in line]
        return dict(runs[-1]) if runs else {}

    def attempts(self, of_run: Mapping[str, Figure] | None = None) -> dict[str, Attempt]:
        """Return the last attempt at each check, of runs with these facts among theirs if any are
        given."""
        attempts: dict[str, Attempt] = {}
        open_findings: dict[str, list[Finding]] = {}
        is_wanted = True
        for line in self._lines():
            if "run" in line:
                is_wanted = of_run is None or of_run.items() <= line["run"].items()
            elif "status" in line:
                end = End(line["check"], Status(line["status"]), line["took_s"], line["tail"])
                found = open_findings.pop(end.check, [])
                if is_wanted:
                    attempts[end.check] = Attempt(end, tuple(found))
            else:
                finding = Finding(line["what"], line["figures"], line["fault"])
                open_findings.setdefault(line["check"], []).append(finding)
        return attempts

    def table(self) -> str:
        """Return the last attempts and their findings as Markdown."""
        attempts = self.attempts().values()
        ends = [["check", "ended", "s", "findings", "faults"], *map(_end_cells, attempts)]
        found = [["check", "what", "figures", "fault"]]
        for attempt in attempts:
            found += [[attempt.end.check, *_cells(each)] for each in attempt.findings]
        facts = _figures_text(self.last_run())
        return f"{facts}\n\n{table(ends)}\n\n{table(found)}\n"

    def _add(self, line: Mapping[str, object]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield the whole lines: one may have been cut when its process was ended."""
        if not self.path.exists():
            return
        for text in self.path.read_text().splitlines():
            try:
                yield json.loads(text)
            except ValueError:
                continue


def _end_cells(attempt: Attempt) -> list[str]:
    end, findings = attempt.end, attempt.findings
    num_faults = sum(each.fault is not None for each in findings)
    return [end.check, end.status, f"{end.took_s:.0f}", str(len(findings)), str(num_faults)]


def _cells(finding: Finding) -> list[str]:
    return [finding.what, _figures_text(finding.figures), finding.fault or ""]


def _figures_text(figures: Mapping[str, Figure]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in figures.items())


def _text(value: Figure) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
