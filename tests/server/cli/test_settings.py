"""Flags beat variables beat defaults; what is wrong is named; the table of options is complete."""

from pathlib import Path

import pytest

from quire.cache.block_hash import HashAlgorithm
from quire.engine.config import (
    EngineConfig,
    LogLevel,
    MemoryConfig,
    ModelConfig,
    PriorityTargets,
    SchedulingConfig,
    TracingConfig,
)
from quire.models.config import (
    AttentionBackendName,
    CUDAGraphMode,
    KVCacheDtype,
    LinearBackend,
    ModelDtype,
    Quantization,
)
from quire.models.optimizations import Optimization
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName, QueueOrder
from quire.server.cli.arguments import build_parser
from quire.server.cli.commands import SPIN_COUNT, calm_threads
from quire.server.cli.main import main
from quire.server.cli.options import OPTIONS
from quire.server.cli.settings import read_config, unknown_variables
from quire.server.config import (
    BUNDLED_MODEL_NAME,
    ApiKey,
    InvalidOption,
    MetricsCompat,
    ServedModelConfig,
    ServerConfig,
)
from quire.server.http.listen import bind


def config_of(*argv: str, **environ: str) -> ServerConfig:
    arguments = vars(build_parser().parse_args(["serve", *argv]))
    del arguments["command"]
    return read_config(arguments, environ)


def test_nothing_said_serves_the_bundled_model() -> None:
    config = config_of()
    engine = EngineConfig(ModelConfig(config.model.engine.model.model))
    assert config == ServerConfig((ServedModelConfig(engine, (BUNDLED_MODEL_NAME,)),))
    assert (Path(config.model.engine.model.model) / "tokenizer.json").is_file()


def test_flag_beats_variable_beats_default() -> None:
    assert config_of().port == 8000
    assert config_of(QUIRE_PORT="81").port == 81
    assert config_of("--port", "82", QUIRE_PORT="81").port == 82
    assert config_of(QUIRE_PORT="").port == 8000


def test_bodies_together_have_room_for_the_largest_one() -> None:
    with pytest.raises(InvalidOption, match="--max-half-read-bytes is 1024, less than"):
        config_of("--max-half-read-bytes", "1K")


@pytest.mark.parametrize("origin", ["example.com", "https://a/path", "https://", "a b://c"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(InvalidOption, match="--allowed-origins: expected an origin such as"):
        config_of("--allowed-origins", origin)
    with pytest.raises(InvalidOption, match="QUIRE_ALLOWED_ORIGINS: expected"):
        config_of(QUIRE_ALLOWED_ORIGINS=f"*,{origin}")


EVERY_FLAG = (
    *("--model", "some/model", "--revision", "main", "--trust-remote-code"),
    *("--device", "cpu", "--dtype", "bfloat16", "--num-threads", "2", "--block-size", "32"),
    *("--kv-cache-dtype", "fp8", "--disable-hybrid-kv-cache-manager"),
    *("--linear-backend", "torch", "--quantization", "int8"),
    *("--attention-backend", "eager", "--swap-space", "1.5", "--preemption-mode", "swap"),
    *("--gpu-memory-utilization", "0.5", "--max-model-len", "77", "--max-num-seqs", "3"),
    *("--max-num-batched-tokens", "99", "--max-num-queued-reqs", "5"),
    *("--otlp-traces-endpoint", "https://collector:4318/v1/traces"),
    *("--scheduling-policy", "fair", "--priority-ageing-s", "2.5", "--max-skips", "0"),
    "--no-wait-for-prefix",
    *("--prefix-caching-hash-algo", "sha256_cbor", "--prefix-caching-seed", "7"),
    *("--async-scheduling", "--enforce-eager", "--cudagraph-mode", "piecewise"),
    *("--disable-optimizations", "huge-pages,amx"),
    *("--enable-kv-cache-events", "--timeline-requests", "0", "--tenant-secret", "of the house"),
    *("--admin-key", "of the master"),
    *("--shared-prefix-file", "prefixes.jsonl"),
    *("--no-enable-prefix-caching", "--served-model-name", "a", "--served-model-name", "b"),
    *("--api-key", "k1", "--api-key", "k,2", "--host", "::1", "--port", "0"),
    *("--max-body-bytes", "123", "--max-half-read-bytes", "1K"),
    *("--allowed-origins", "https://a.example,http://b:3000", "--allowed-origins", "null"),
    *("--allowed-hosts", "a.example:8000"),
    *("--shutdown-timeout", "1.5", "--stuck-after", "2"),
    *("--sse-keep-alive-interval", "0", "--metrics-compat", "none", "--log-level", "debug"),
)
EVERY_MODEL_OPTION = ServedModelConfig(
    engine=EngineConfig(
        ModelConfig(
            "some/model",
            revision="main",
            trust_remote_code=True,
            device="cpu",
            dtype=ModelDtype.BFLOAT16,
            num_threads=2,
            attention_backend=AttentionBackendName.EAGER,
            linear_backend=LinearBackend.TORCH,
            quantization=Quantization.INT8,
            cudagraph_mode=CUDAGraphMode.PIECEWISE,
            enforce_eager=True,
            disable_optimizations=(Optimization.HUGE_PAGES, Optimization.AMX),
        ),
        memory=MemoryConfig(
            block_size=32,
            gpu_memory_utilization=0.5,
            kv_cache_dtype=KVCacheDtype.FP8_E4M3,
            disable_hybrid_kv_cache_manager=True,
            swap_space=1.5,
            enable_prefix_caching=False,
            prefix_caching_hash_algo=HashAlgorithm.SHA256_CBOR,
            prefix_caching_seed="7",
        ),
        scheduling=SchedulingConfig(
            preemption_mode=PreemptionMode.SWAP,
            max_model_len=77,
            max_num_seqs=3,
            max_num_batched_tokens=99,
            max_num_queued_reqs=5,
            scheduling_policy=PolicyName.FAIR,
            priority_ageing_s=2.5,
            max_skips=0,
            wait_for_prefix=False,
            async_scheduling=True,
        ),
        tracing=TracingConfig(
            otlp_traces_endpoint="https://collector:4318/v1/traces",
            enable_kv_cache_events=True,
            log_level=LogLevel.DEBUG,
        ),
    ),
    served_model_names=("a", "b"),
    shared_prefix_file="prefixes.jsonl",
)
EVERY_OPTION = ServerConfig(
    (EVERY_MODEL_OPTION,),
    api_keys=(ApiKey("k1"), ApiKey("k,2")),
    admin_key="of the master",
    tenant_secret="of the house",
    timeline_requests=0,
    host="::1",
    port=0,
    max_body_bytes=123,
    max_half_read_bytes=1024,
    allowed_origins=("https://a.example", "http://b:3000", "null"),
    allowed_hosts=("a.example:8000",),
    shutdown_timeout_s=1.5,
    stuck_after_s=2.0,
    sse_keep_alive_interval_s=0.0,
    metrics_compat=MetricsCompat.NONE,
    log_level=LogLevel.DEBUG,
)


def test_every_option_reaches_the_configuration() -> None:
    assert config_of(*EVERY_FLAG) == EVERY_OPTION


@pytest.mark.parametrize(
    ("flag", "value", "field", "number"),
    [
        ("--num-gpu-blocks-override", "9", "num_gpu_blocks_override", 9),
        ("--kv-cache-tokens", "4096", "kv_cache_tokens", 4096),
        ("--kv-cache-memory-bytes", "1000", "kv_cache_memory_bytes", 1000),
        ("--kv-cache-memory-bytes", "3KiB", "kv_cache_memory_bytes", 3 << 10),
        ("--kv-cache-memory-bytes", "512MiB", "kv_cache_memory_bytes", 512 << 20),
        ("--kv-cache-memory-bytes", "2GiB", "kv_cache_memory_bytes", 2 << 30),
        ("--kv-cache-memory-bytes", "2G", "kv_cache_memory_bytes", 2 << 30),
        ("--kv-cache-memory-bytes", "1 TiB", "kv_cache_memory_bytes", 1 << 40),
    ],
)
def test_kv_memory_is_said_in_one_way(flag: str, value: str, field: str, number: int) -> None:
    memory = config_of(flag, value).model.engine.memory
    assert getattr(memory, field) == number
    assert memory.budget.option == flag
    assert memory.memory_share == 0.9


def test_kv_memory_said_in_two_ways_is_an_error_that_names_both() -> None:
    with pytest.raises(InvalidOption, match="--kv-cache-tokens and --gpu-memory-utilization both"):
        config_of("--kv-cache-tokens", "5", "--gpu-memory-utilization", "0.9")
    with pytest.raises(InvalidOption, match="-override and --kv-cache-memory-bytes both"):
        config_of("--kv-cache-memory-bytes", "5", QUIRE_NUM_GPU_BLOCKS_OVERRIDE="7")


def test_bad_memory_options_end_the_command_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--block-size", "12"]) == 2
    assert "--block-size: expected one of 8, 16, 32, 64, 128, 256, got '12'" in (
        capsys.readouterr().err
    )
    assert main(["serve", "--kv-cache-tokens", "5", "--kv-cache-memory-bytes", "5"]) == 2
    assert capsys.readouterr().err.startswith("quire serve: --kv-cache-memory-bytes and ")


def test_every_option_has_a_variable() -> None:
    config = config_of(
        QUIRE_MODEL="some/model",
        QUIRE_ENABLE_PREFIX_CACHING="false",
        QUIRE_SERVED_MODEL_NAME="a, b",
        QUIRE_API_KEY="k1,k2",
        QUIRE_MAX_NUM_SEQS="3",
    )
    assert config.model.engine.model.model == "some/model"
    assert not config.model.engine.memory.enable_prefix_caching
    assert config.model.served_model_names == ("a", "b")
    assert config.api_keys == (ApiKey("k1"), ApiKey("k2"))
    assert config.model.engine.scheduling.max_num_seqs == 3
    assert len({option.variable for option in OPTIONS}) == len(OPTIONS)


def test_model_may_be_positional() -> None:
    config = config_of("some/model", QUIRE_MODEL="other")
    assert config.model.engine.model.model == "some/model"
    assert config.model.served_model_names == ("some/model",)
    with pytest.raises(InvalidOption, match="twice"):
        config_of("some/model", "--model", "other")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("QUIRE_PORT", value) for value in ("x", "70000")),
        ("QUIRE_MAX_NUM_SEQS", "0"),
        ("QUIRE_GPU_MEMORY_UTILIZATION", "1.1"),
        ("QUIRE_GPU_MEMORY_UTILIZATION", "nan"),
        ("QUIRE_ENABLE_PREFIX_CACHING", "maybe"),
        ("QUIRE_DTYPE", "float8"),
        ("QUIRE_BLOCK_SIZE", "24"),
        ("QUIRE_KV_CACHE_DTYPE", "int4"),
        *((f"QUIRE_{name}_BACKEND", "mkl") for name in ("ATTENTION", "LINEAR")),
        ("QUIRE_QUANTIZATION", "int3"),
        ("QUIRE_DISABLE_OPTIMIZATIONS", "huge-pages,mmx"),
        ("QUIRE_PREFIX_CACHING_HASH_ALGO", "md5"),
        ("QUIRE_KV_CACHE_TOKENS", "0"),
        *(
            ("QUIRE_KV_CACHE_MEMORY_BYTES", value)
            for value in ("2GB", "2iB", "-1", "9999999T", "9" * 5000)
        ),
        ("QUIRE_OTLP_TRACES_ENDPOINT", "localhost:4318"),
        ("QUIRE_OTLP_TRACES_ENDPOINT", "http:///v1/traces"),
        ("QUIRE_OTLP_TRACES_ENDPOINT", "http://[::1/v1/traces"),
        ("QUIRE_SHUTDOWN_TIMEOUT", "-1"),
        ("QUIRE_METRICS_COMPAT", "sglang"),
        ("QUIRE_SCHEDULING_POLICY", "lifo"),
        ("QUIRE_PRIORITY_AGEING_S", "-1"),
        ("QUIRE_MAX_SKIPS", "-1"),
        ("QUIRE_MAX_NUM_QUEUED_REQS", "99999999999999999999999"),
        ("QUIRE_NUM_THREADS", "100000"),
        ("QUIRE_SWAP_SPACE", "1e300"),
        ("QUIRE_SHUTDOWN_TIMEOUT", "1e300"),
        ("QUIRE_STUCK_AFTER", "0"),
        ("QUIRE_SSE_KEEP_ALIVE_INTERVAL", "1e-9"),
        ("QUIRE_SSE_KEEP_ALIVE_INTERVAL", "-1"),
        ("QUIRE_TIMELINE_REQUESTS", "-1"),
        ("QUIRE_SERVED_MODEL_NAME", ","),
    ],
)
def test_bad_value_names_what_holds_it(variable: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=variable):
        config_of(**{variable: value})
    flag = "--" + variable.removeprefix("QUIRE_").lower().replace("_", "-")
    if flag not in ("--enable-prefix-caching", "--served-model-name"):
        with pytest.raises(InvalidOption, match=flag):
            config_of(flag, value)


@pytest.mark.parametrize(
    "flag", ["--tenant-secret", "--api-key", "--served-model-name", "--model", "--host"]
)
def test_an_empty_flag_is_said_to_be_empty(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for nothing in ("", " "):
        assert main(["serve", flag, nothing]) == 2
        assert capsys.readouterr().err == f"quire serve: {flag}: must not be empty\n"


def test_keys_and_names_lose_the_spaces_around_them() -> None:
    config = config_of("--api-key", "abc ", "--api-key", "abc", "--served-model-name", " a")
    assert config.api_keys == (ApiKey("abc"),)
    assert config.model.served_model_names == ("a",)


def test_a_revision_of_a_local_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="--revision is abc, but .* is a local folder"):
        config_of(str(tmp_path), "--revision", "abc")
    with pytest.raises(InvalidOption, match="--revision is abc, but .*bundled is a local folder"):
        config_of("--revision", "abc")


@pytest.mark.parametrize("variable", ["QUIRE_API_KEY", "QUIRE_API_KEY_FILE", "QUIRE_ADMIN_KEY"])
def test_a_key_variable_that_is_empty_does_not_open_the_server(variable: str) -> None:
    with pytest.raises(InvalidOption, match=f"^{variable} is set but empty, .*or unset it$"):
        config_of(**{variable: ""})
    with pytest.raises(InvalidOption, match=variable):
        config_of(**{variable: " "})


def test_the_admin_key_is_no_clients_key() -> None:
    assert config_of(QUIRE_ADMIN_KEY="house").admin_key == "house"
    assert config_of("--admin-key", "one", QUIRE_ADMIN_KEY="").admin_key == "one"
    with pytest.raises(InvalidOption, match="--admin-key is one of the API keys too") as refused:
        config_of("--api-key", "house", QUIRE_ADMIN_KEY="house")
    assert "house" not in str(refused.value)


def test_a_key_flag_beats_its_empty_variable() -> None:
    assert config_of("--api-key", "one", QUIRE_API_KEY="").api_keys == (ApiKey("one"),)


def test_any_other_variable_that_is_empty_counts_as_not_set() -> None:
    guards = {"QUIRE_API_KEY", "QUIRE_API_KEY_FILE", "QUIRE_ADMIN_KEY"}
    assert config_of(**{o.variable: "" for o in OPTIONS if o.variable not in guards}) == config_of()


def test_unknown_variables_are_told() -> None:
    (warning,) = unknown_variables({"QUIRE_MAX_NUM_SEQ": "1", "QUIRE_PORT": "1", "HOME": "/"})
    assert "QUIRE_MAX_NUM_SEQS" in warning


def test_secrets_are_not_shown() -> None:
    config = config_of("--api-key", "hush", QUIRE_TENANT_SECRET="hushed")
    assert "hush" not in repr(config) + repr(config.api_keys)
    assert config.tenant_secret == "hushed"


def test_taken_port_is_an_error_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise() -> None:
    for said, meant in (
        ({}, {"GOMP_SPINCOUNT": SPIN_COUNT}),
        ({"GOMP_SPINCOUNT": "5"}, {"GOMP_SPINCOUNT": "5"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ):
        environ: dict[str, str] = dict(said)
        calm_threads(environ)
        assert environ == meant


def test_targets_of_priorities_are_for_the_policy_that_looks_at_them() -> None:
    given = ("--priority-targets", "1:ttft_ms=2000")
    scheduling = config_of(*given, "--scheduling-policy", "priority").model.engine.scheduling
    assert scheduling.priority_targets == (PriorityTargets(1, ttft_ms=2000.0),)
    with pytest.raises(InvalidOption, match="--scheduling-policy is fcfs, .* must be priority"):
        config_of(*given)
    with pytest.raises(InvalidOption, match="QUIRE_PRIORITY_TARGETS: expected ttft_ms or itl_ms"):
        config_of(QUIRE_PRIORITY_TARGETS="1:ttft=3")


def test_the_order_of_the_queue_reaches_the_scheduler() -> None:
    scheduling = config_of("--queue-order", "shortest").model.engine.scheduling
    assert scheduling.scheduler_config(512, 2048).queue_order is QueueOrder.SHORTEST
    with pytest.raises(InvalidOption, match="--queue-order: expected .*arrival"):
        config_of("--queue-order", "longest")
