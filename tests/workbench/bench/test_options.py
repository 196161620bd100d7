"""The command line of `quire bench`."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.cli.arguments import build_parser
from quire.server.cli.main import main
from quire.workbench.bench.command import without_secrets
from quire.workbench.bench.exchange import parse_address
from quire.workbench.bench.options import BenchOptions, read_options, split_serve_args


def options_of(*argv: str) -> BenchOptions:
    own, serve_args = split_serve_args(["bench", *argv])
    given = vars(build_parser().parse_args(own))
    del given["command"]
    return read_options(given, serve_args)


def names(options: BenchOptions) -> list[str]:
    return [workload.name for workload in options.workloads]


def test_all_is_measured_where_nothing_is_said() -> None:
    options = options_of()
    assert names(options) == ["latency", "throughput", "prefix", "prefill"]
    assert options.measures_startup and options.num_repeats == 3


def test_startup_is_for_a_server_of_our_own() -> None:
    assert not options_of("--url", "http://x").measures_startup
    assert names(options_of("startup")) == []
    with pytest.raises(ValueError, match="startup"):
        options_of("startup", "--url", "http://x")


def test_what_follows_the_dashes_is_for_serve() -> None:
    options = options_of("latency", "--", "some/model", "--dtype", "bfloat16", "--", "x")
    assert options.serve_args == ("some/model", "--dtype", "bfloat16", "--", "x")
    assert split_serve_args(["serve", "--", "x"]) == (["serve", "--", "x"], ())
    with pytest.raises(ValueError, match="--url"):
        options_of("--url", "http://x", "--", "some/model")


@given(st.integers(1, 999), st.integers(1, 999), st.integers(1, 4000), st.integers(1, 4000))
def test_counts_are_those_asked_for(requests: int, clients: int, given: int, made: int) -> None:
    counts = (f"--requests={requests}", f"--concurrency={clients}")
    lengths = (f"--input-tokens={given}", f"--output-tokens={made}")
    for workload in options_of(*counts, *lengths).workloads:
        assert workload.num_requests == requests
        most = 1 if workload.name == "latency" else clients
        assert workload.concurrency == min(most, requests)
        assert (workload.num_prompt_tokens, workload.num_output_tokens) == (given, made)


@pytest.mark.parametrize(
    "argv",
    [
        ["speed"],
        ["--requests", "0"],
        ["--repeats", "x"],
        ["--api-key", "a\r\nb"],
        ["--json", "no/such/folder/x.json"],
    ],
)
def test_bad_option_is_a_usage_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options_of(*argv)
    assert ended.value.code == 2
    assert argv[0] in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--url", "--vs"])
@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://u:p@x", "http://x/?a", "x"])
def test_bad_url_is_a_line(flag: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", flag, url]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"quire bench: {flag}: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("http://localhost:8000/v1/", "localhost", 8000, ""),
        ("http://example.com", "example.com", 80, ""),
        ("https://example.com/api/v1", "example.com", 443, "/api"),
        ("http://[::1]:7", "::1", 7, ""),
    ],
)
def test_url_may_be_a_base_url(url: str, host: str, port: int, prefix: str) -> None:
    address = parse_address(url)
    assert (address.host, address.port, address.prefix) == (host, port, prefix)
    assert parse_address(address.url).url == address.url


KEYS = (["--api-key", "hush"], ["--api-key=hush"], ["--tenant-s", "hush"])


@given(st.permutations([*KEYS, ["latency"], ["--url", "http://x"]]))
def test_keys_are_not_written_down(parts: Sequence[list[str]]) -> None:
    shown = without_secrets([word for part in parts for word in part])
    assert "hush" not in shown
    assert "latency" in shown and "--url http://x" in shown
    assert "hush" not in repr(options_of("--api-key", "hush"))


def test_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        options_of("--plot", str(tmp_path))
