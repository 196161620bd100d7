"""A flag that no command knows is refused with the one that was perhaps meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.cli.arguments import build_parser, unknown_flag
from quire.server.cli.main import main
from quire.server.cli.options import OPTIONS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("serve --max-num-seq 3", "--max-num-seq; did you mean --max-num-seqs?"),
        ("serve --max_num_seqs=3", "--max_num_seqs; did you mean --max-num-seqs?"),
        ("serve a/model --no-enable-prefix-cache x", "did you mean --no-enable-prefix-caching?"),
        ("serve --xyzzy", "--xyzzy; `quire serve --help` lists them all"),
        ("serve -p 80", "unknown flag -p; "),
        ("bench --reqests 3", "--reqests; did you mean --requests?"),
        ("chat --no-histroy", "--no-histroy; did you mean --no-history?"),
        ("bench latency --repeat 2 -- --not-ours", "--repeat; did you mean --repeats?"),
    ],
)
def test_unknown_flag_is_named_with_what_was_meant(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"quire {line.split()[0]}: unknown flag -")
    assert error.count("\n") == 1 and said in error


@pytest.mark.parametrize(
    "line",
    [
        *("serve -- --model", "serve --port -1", "bench -- --not-ours", "--verison", ""),
        *("serve --tenant-secret=--x --prefix-caching-seed -1", "chatter --not-yet"),
    ],
)
def test_what_is_no_unknown_flag_is_left_to_the_parser(line: str) -> None:
    assert unknown_flag(line.split()) is None


def test_every_known_flag_is_known() -> None:
    flags = [f"--{option.flag}" for option in OPTIONS]
    assert unknown_flag(["serve", "--help", "-h", *flags]) is None


@given(st.sampled_from([option.flag for option in OPTIONS if "-" in option.flag]))
def test_no_flag_may_be_cut_short(flag: str) -> None:
    """What is unique today need not be so with tomorrow's flags."""
    cut = f"--{flag[:-1]}"
    fault = unknown_flag(["serve", cut])
    assert fault is not None and f"did you mean --{flag}?" in fault
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", cut, "1"])
