"""The command `quire doctor`: examines this machine with the options that the variables set."""

import logging
from collections.abc import Iterator, Mapping

from quire.doctor.examination import Subject, examine, has_failed
from quire.doctor.finding import Finding, Section, fail, ok, warn
from quire.doctor.report import json_of, lines_of
from quire.engine.config import ModelConfig
from quire.server.cli.exit_codes import FAILED_START
from quire.server.cli.option_values import InvalidOption
from quire.server.cli.output import print_line
from quire.server.cli.settings import build_config, parse_values, unknown_variables
from quire.server.config import ServerConfig


def doctor_command(arguments: Mapping[str, object], environ: Mapping[str, str]) -> int:
    """Examine, and print each section once it is known. Return the exit code."""
    logging.basicConfig(level=logging.ERROR)  # what is not well is told by the report
    sections: list[Section] = []
    for section in examine(_subject(environ), tries=not arguments["no_self_test"]):
        sections.append(section)
        if not arguments["json"]:
            print_line("\n".join(lines_of(section)))
    if arguments["json"]:
        print_line(json_of(sections).decode())
    return FAILED_START if has_failed(sections) else 0


def _subject(environ: Mapping[str, str]) -> Subject:
    """Return the server of the variables, or the default one where they are wrong."""
    findings = list(_unknown(environ))
    try:
        config = build_config(parse_values({}, environ))
    except InvalidOption as error:
        findings.append(fail("variables", str(error), "put it right: no server starts with it"))
        config = build_config(parse_values({}, {}))
    if not findings:
        findings.append(ok("variables", "those that begin with QUIRE_ are right"))
    return Subject(_model(config), config.host, config.port, tuple(findings))


def _unknown(environ: Mapping[str, str]) -> Iterator[Finding]:
    for text in unknown_variables(environ):
        yield warn("variables", text, "leave it out, or write it as the option that was meant")


def _model(config: ServerConfig) -> ModelConfig:
    return config.models[0].engine.model
