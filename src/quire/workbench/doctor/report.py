"""The report of `quire doctor`, as lines and as JSON."""

from collections.abc import Iterator, Sequence

import msgspec

from quire.version import __version__
from quire.workbench.doctor.examination import has_failed
from quire.workbench.doctor.finding import Section


class DoctorReport(msgspec.Struct, frozen=True):
    """The whole report; `is_well` says that nothing failed."""

    quire: str
    is_well: bool
    sections: tuple[Section, ...]


def json_of(sections: Sequence[Section]) -> bytes:
    """Return the report as JSON, for programs."""
    report = DoctorReport(__version__, not has_failed(sections), tuple(sections))
    return msgspec.json.format(msgspec.json.encode(report))


def lines_of(section: Section) -> Iterator[str]:
    """Yield a section as lines of plain text; what is not well has its advice below."""
    yield section.name
    for each in section.findings:
        yield f"  {each.level:<5} {each.subject}: {each.text}"
        if each.advice:
            yield f"        -> {each.advice}"
