"""The command `quire doctor`: examines this machine, and a model for it, with the options that the
variables set."""

import logging
from collections.abc import Iterator, Mapping

from quire.server.app.exit_codes import FAILED_START
from quire.server.cli.output import print_line
from quire.server.cli.settings import read_config, unknown_variables
from quire.server.config import InvalidOption
from quire.workbench.doctor.examination import ExaminedServer, examine, has_failed
from quire.workbench.doctor.finding import Finding, Section, fail, ok, warn
from quire.workbench.doctor.report import json_of, lines_of


def doctor_command(arguments: Mapping[str, object], environ: Mapping[str, str]) -> int:
    """Examine, and print each section once it is known. Return the exit code."""
    logging.basicConfig(level=logging.ERROR)  # what is not well is told by the report
    sections: list[Section] = []
    subject = _subject(arguments["positional_model"], environ)
    for section in examine(subject, tries=not arguments["no_self_test"]):
        sections.append(section)
        if not arguments["json"]:
            print_line("\n".join(lines_of(section)))
    if arguments["json"]:
        print_line(json_of(sections).decode())
    return FAILED_START if has_failed(sections) else 0


def _subject(model: object, environ: Mapping[str, str]) -> ExaminedServer:
    """Return the server of a model and the variables, or the default one where they are wrong."""
    findings = list(_unknown(environ))
    asked = {} if model is None else {"positional_model": model}
    try:
        config = read_config(asked, environ)
    except InvalidOption as error:
        findings.append(fail("variables", str(error), "put it right: no server starts with it"))
        config = read_config(asked, {})
    if not findings:
        findings.append(ok("variables", "those that begin with QUIRE_ are right"))
    name = None if model is None else str(model)
    return ExaminedServer(config.model.engine, config.host, config.port, tuple(findings), name)


def _unknown(environ: Mapping[str, str]) -> Iterator[Finding]:
    for text in unknown_variables(environ):
        yield warn("variables", text, "leave it out, or write it as the option that was meant")
