"""`--data-parallel-size`: what goes with it, and the engines that it makes of a model."""

from pathlib import Path

import pytest

from quire.engines.local.configs import engine_configs
from quire.server.cli.option_values import MAX_ENGINES
from quire.server.config import InvalidOption
from tests.server.cli.test_settings import config_of


def test_engines_are_counted() -> None:
    assert config_of().model.engine.parallel.data_parallel_size == 1
    assert config_of(QUIRE_DATA_PARALLEL_SIZE="2").model.engine.parallel.data_parallel_size == 2


def test_each_engine_has_a_number_and_logs_it() -> None:
    single, several = config_of().model.engine, config_of("--data-parallel-size", "3").model.engine
    assert engine_configs(single) == (single,)
    engines = engine_configs(several)
    assert [each.data_parallel_rank for each in engines] == [0, 1, 2]
    assert [each.tracing.log_name for each in engines] == ["engine 0", "engine 1", "engine 2"]


def test_models_have_engines_of_their_own_number(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("- model: a\n  data-parallel-size: 2\n- model: b\n")
    models = config_of("--models-config-file", str(path)).models
    assert [each.engine.parallel.data_parallel_size for each in models] == [2, 1]
    names = [each.tracing.log_name for model in models for each in engine_configs(model.engine)]
    assert names == ["engine of a 0", "engine of a 1", "engine of b"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--data-parallel-size", "0"), "--data-parallel-size"),
        (("--data-parallel-size", str(MAX_ENGINES + 1)), "--data-parallel-size"),
        (("--data-parallel-size", "2", "--replicas", "2"), "--replicas starts engines too"),
        (("--data-parallel-size", "2", "--max-replicas", "2"), "--replicas starts engines too"),
        (("--data-parallel-size", "2", "--enable-kv-cache-events"), "--enable-kv-cache-events"),
        (
            ("--data-parallel-size", "2", "--kv-transfer-listen", "127.0.0.1:7100"),
            "--kv-transfer-listen",
        ),
    ],
)
def test_what_cannot_be_is_named(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        config_of(*flags)
