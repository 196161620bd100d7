"""Several models from flags and from `--models-config-file`, and their shares of memory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig
from quire.models.config import ModelDtype
from quire.server.cli.main import main
from quire.server.cli.memory_shares import with_shares
from quire.server.cli.models_file import ENTRY_OPTIONS
from quire.server.config import AUTO, NO_PARSER, InvalidOption, LoadTime, ServerConfig
from tests.server.cli.test_settings import config_of

FILE = """
# The models of the test.
- name: small
  model: /models/small
  served-model-name: [s, klein]
  max-model-len: 512
  dtype: float32
  kv-cache-memory-bytes: 64MiB
  num-threads: 1
  enforce-eager: true
- model: org/large
  load: on-first-use
  unload-after-s: 600
  tool-call-parser: none
  gpu-memory-utilization: 0.5
- name: third
  served-model-name: tertia
  model: org/large
"""


def from_file(tmp_path: Path, content: str, *flags: str) -> ServerConfig:
    path = tmp_path / "models.yaml"
    path.write_text(content)
    return config_of("--models-config-file", str(path), *flags)


def test_a_file_tells_each_model_by_the_names_of_flags(tmp_path: Path) -> None:
    config = from_file(tmp_path, FILE, "--max-num-seqs", "8", "--max-model-len", "99")
    small, large, third = config.models
    assert small.served_model_names == ("small", "s", "klein")
    assert small.engine.model == ModelConfig(
        "/models/small", dtype=ModelDtype.FLOAT32, num_threads=1, enforce_eager=True
    )
    assert small.engine.memory.budget.num_bytes == 64 << 20
    assert (small.load, small.unload_after_s) == (LoadTime.AT_START, None)
    assert large.served_model_names == ("org/large",)
    assert (large.load, large.unload_after_s) == (LoadTime.ON_FIRST_USE, 600)
    assert (large.tool_call_parser, small.tool_call_parser) == (NO_PARSER, AUTO)
    assert third.served_model_names == ("third", "tertia")
    scheduling = [each.engine.scheduling for each in config.models]
    assert [each.max_model_len for each in scheduling] == [512, 99, 99]
    assert [each.max_num_seqs for each in scheduling] == [8, 8, 8]
    shares = [each.engine.memory.gpu_memory_utilization for each in config.models]
    assert shares == [None, 0.5, pytest.approx(0.4)]
    assert all(each.engine.memory.is_device_shared for each in config.models)
    names = [each.engine.tracing.log_name for each in config.models]
    assert names == ["engine of small", "engine of org/large", "engine of third"]


def test_a_model_repeated_as_a_flag_has_the_same_options() -> None:
    config = config_of("--model", "a", "--model", "b,c", "--max-num-seqs", "8")
    assert [each.served_model_names for each in config.models] == [("a",), ("b,c",)]
    assert [each.engine.model.model for each in config.models] == ["a", "b,c"]
    assert {each.engine.memory.gpu_memory_utilization for each in config.models} == {0.45}
    assert {each.engine.scheduling.max_num_seqs for each in config.models} == {8}


def test_a_file_of_one_model_is_as_flags_that_tell_it(tmp_path: Path) -> None:
    assert from_file(tmp_path, "- model: some/model\n  max-num-seqs: 3") == config_of(
        "some/model", "--max-num-seqs", "3"
    )


def test_how_a_model_says_its_memory_replaces_what_flags_say(tmp_path: Path) -> None:
    content = "- model: a\n  kv-cache-tokens: 100\n- model: b"
    first, second = from_file(tmp_path, content, "--kv-cache-memory-bytes", "1M").models
    assert first.engine.memory.budget.num_tokens == 100
    assert second.engine.memory.budget.num_bytes == 1 << 20


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("- model: a\n  max-model-length: 3", r":2: unknown key 'max-model-length'; did you mean"),
        ("- model: a\n  port: 3", r":2: unknown key 'port'"),
        ("- model: a\n  otlp-traces-endpoint: http://x", r":2: unknown key 'otlp"),
        ("- model: a\n- name: b", r":2: the model has no key 'model'"),
        ("- model: a\n  max-num-seqs: many", r":2: max-num-seqs: expected an integer"),
        ("- model: a\n  load: later", r":2: load: expected one of at-start, on-first-use"),
        ("- model: a\n  unload-after-s: -1", r":2: unload-after-s: expected seconds"),
        ("- model: a\n  dtype:", r":2: expected a value"),
        ("- model: a\n  dtype: [x]", r":2: dtype: takes one value"),
        ("- model: {x: y}", r":1: expected a value"),
        ("- model: a\n  model: b", r":2: model is given twice"),
        ("- model: a\n- model: a", r":2: the name 'a' is given twice, first by .*:1"),
        ("- model: a\n  name: b\n  served-model-name: b", r":1: the name 'b' is given twice"),
        (
            "- model: a\n  block-size: 8\n  kv-cache-tokens: 1\n  kv-cache-memory-bytes: 1",
            r":1: --",
        ),
        ("- a", r":1: a model is told by keys"),
        ("model: a", "must be a list of models"),
        ("", "must be a list of models"),
        ("[]", "has no models"),
        ("- model: 'a", "is not valid YAML"),
        (
            "- {model: a, gpu-memory-utilization: 0.6}\n- {model: b, gpu-memory-utilization: 0.5}",
            "--gpu-memory-utilization of a, b are 1.1 of device auto together",
        ),
        (
            "- {model: a, gpu-memory-utilization: 0.95}\n- model: b",
            "the other models leave b no memory",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidOption, match=told):
        from_file(tmp_path, content)
    assert main(["serve", "--models-config-file", str(tmp_path / "models.yaml")]) == 2
    assert capsys.readouterr().err.startswith("quire serve: ")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--model", "a", "--model", "a"), "the name 'a' is given twice"),
        (("--model", "a", "--model", "b", "--served-model-name", "c"), "--served-model-name is of"),
        (("--model", "a", "--model", "b", "--revision", "c"), "--revision is of one model"),
        (("--model", "a", "--model", "b", "--gpu-memory-utilization", "0.9"), "are 1.8 of device"),
        (("a", "--model", "b"), "given twice"),
        (("a", "--models-config-file", "x"), "--model and --models-config-file both"),
        (("--served-model-name", "a", "--models-config-file", "x"), "--served-model-name and"),
        (("--models-config-file", "/none/x"), "cannot read /none/x"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags: tuple[str, ...], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        config_of(*flags)


def test_a_batch_file_is_run_on_one_model(tmp_path: Path) -> None:
    assert main(["run-batch", "in", "out", "--model", "toy", "--model", "toy2"]) == 2


def test_what_a_server_has_once_is_no_key_of_a_model() -> None:
    assert not {"port", "api-key", "admin-key", "max-logprobs", "log-level"} & set(ENTRY_OPTIONS)


SHARES = st.none() | st.sampled_from((0.1, 0.2, 0.3, 0.5))
DEVICES = st.sampled_from(("auto", "cpu", "cuda", "cuda:0", "cuda:1"))


@given(st.lists(st.tuples(DEVICES, SHARES, st.booleans()), min_size=2, max_size=6))
def test_no_device_is_given_away_twice(models: list[tuple[str, float | None, bool]]) -> None:
    engines = {
        str(number): EngineConfig(
            ModelConfig("m", device=device),
            MemoryConfig(kv_cache_tokens=5)
            if has_tokens and share is None
            else MemoryConfig(gpu_memory_utilization=share),
        )
        for number, (device, share, has_tokens) in enumerate(models)
    }
    try:
        shared = with_shares(engines)
    except InvalidOption:
        assert sum(share or 0 for _, share, _ in models) >= 0.9 - 1e-9
        return
    for device in ("cpu", "cuda:0", "cuda:1"):
        on_device = [
            each.memory.gpu_memory_utilization
            for each in shared.values()
            if each.model.device in (device, "auto")
            or (device, each.model.device) == ("cuda:0", "cuda")
        ]
        assert sum(share or 0 for share in on_device) <= 1 + 1e-5
    for name, each in shared.items():
        given_share, has_tokens = engines[name].memory.gpu_memory_utilization, models[int(name)][2]
        share = each.memory.gpu_memory_utilization
        assert share == given_share if given_share is not None else (share is None) == has_tokens
