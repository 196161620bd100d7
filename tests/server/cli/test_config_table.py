"""Every field of the configuration has an option, and every option a row."""

import dataclasses

import pytest

from quire.server.cli.config_table import OWNERS, config_table
from quire.server.cli.main import main
from quire.server.cli.option import ConfigSection
from quire.server.cli.options import OPTIONS

FILLED_OTHERWISE = {
    ConfigSection.MODEL: {"model"},
    ConfigSection.TRACING: {"log_level", "log_format", "log_name"},
    ConfigSection.MEMORY: {"is_device_shared"},
    ConfigSection.SERVED_MODEL: {
        *("engine", "served_model_names", "load", "unload_after_s", "default_temperature")
    },
    ConfigSection.SERVER: {"models", "model_aliases", "api_keys", "http", "is_socket_inherited"},
}
"""Fields without an option of their section: they are filled from other options or variables, or
from what is known of the default model."""


@pytest.mark.parametrize("section", OWNERS)
def test_every_field_has_an_option(section: ConfigSection) -> None:
    fields = {field.name for field in dataclasses.fields(OWNERS[section])}
    filled = {option.target for option in OPTIONS if option.section is section}
    assert fields == filled | FILLED_OTHERWISE.get(section, set())


def test_table_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config-table"]) == 0
    table = capsys.readouterr().out
    assert table == config_table()
    for option in OPTIONS:
        assert f"`--{option.flag}`" in table
        assert f"`{option.variable}`" in table
