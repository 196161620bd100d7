"""Outputs beside long prompts: each is asked for as told, counted as it was seen, and shown beside
those of other servers."""

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import msgspec
import pytest
from bench.load import Target
from bench.machine import Machine
from bench.peers import QUIRE
from bench.records import Ratio
from bench.requests import build_source
from bench.stall_load import StallFigures, StallLoad, StallRun, run_load
from bench.stall_records import (
    StallRecord,
    StallServer,
    build_rows,
    load_stalls,
    record_text,
    stall_tables,
)
from bench.stall_settings import StallSettings, parse_stalls
from hypothesis import given
from hypothesis import strategies as st

from quire.workbench.bench.exchange import parse_address
from quire.workbench.bench.replies import Reply
from tests.rounding import compounded
from tests.server.served import BUNDLED, MODEL, Served, plain_config, serving

BEGAN_S, ENDS_S = 10.0, 20.0
SHORT = StallLoad(
    num_streams=2,
    num_stream_prompt_tokens=6,
    num_stream_tokens=4,
    max_stream_requests=4000,
    num_prompt_tokens=40,
    every_s=0.1,
    warm_s=0.15,
    watched_s=0.3,
)
MACHINE = Machine("AMD EPYC", 2, ("avx2",), 32.0, 16.0)
SERVERS = (
    StallServer("quire", "0.2.0", "--quantization int8 --target-itl-ms 30.0", "small"),
    StallServer("llamacpp", "1", "", "small-Q8_0.gguf"),
)
ROUNDS = (
    {
        "quire": StallFigures(400.0, 20.0, 30.0, 1000.0),
        "llamacpp": StallFigures(100.0, 40.0, 900.0, 2000.0),
    },
    {
        "quire": StallFigures(600.0, 20.0, 50.0, 1000.0),
        "llamacpp": StallFigures(100.0, 30.0, 1000.0, 500.0),
    },
)


def record(
    date: str = "2026-01-02 03:04 UTC", servers: tuple[StallServer, ...] = SERVERS
) -> StallRecord:
    rows = build_rows(servers, ROUNDS)
    command = "python -m bench.stalls"
    return StallRecord(
        date, "abcdef012", command, MACHINE, 0.1, "small", "words", SHORT, 2, 10.0, rows
    )


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=20), st.integers(1, 200))
def test_the_gaps_of_an_output_span_what_was_watched(times_s: list[float], num: int) -> None:
    times_s.sort()
    run = StallRun("a", BEGAN_S, ENDS_S)
    run.add_stream(Reply(0.0, 31.0, tuple(times_s), 8, num, 0))
    seen = [each for each in times_s if BEGAN_S <= each <= ENDS_S]
    assert len(run.gaps_s) == max(len(seen) - 1, 0) and min(run.gaps_s, default=0.0) >= 0
    spanned_s = seen[-1] - seen[0] if seen else 0.0
    assert sum(run.gaps_s) == pytest.approx(spanned_s, rel=compounded(100), abs=compounded(1000))
    assert run.num_tokens == pytest.approx(num * len(seen) / len(times_s), rel=compounded(4))


@pytest.mark.parametrize(
    ("sent_s", "first_s", "num_tokens", "times_s"),
    [
        (8.0, 9.5, 0, []),
        (8.0, 11.0, 40, []),
        (12.0, 13.5, 40, [1.5]),
        (19.0, 21.0, 0, [2.0]),
    ],
)
def test_prompts_are_timed_if_sent_and_counted_if_answered_while_watched(
    sent_s: float, first_s: float, num_tokens: int, times_s: list[float]
) -> None:
    run = StallRun("a", BEGAN_S, ENDS_S)
    run.add_prompt(Reply(sent_s, first_s + 1, (first_s,), 40, 1, 0), 40)
    assert run.num_tokens == num_tokens and run.first_token_s == times_s


def test_a_first_token_without_text_came_when_its_answer_ended() -> None:
    run = StallRun("a", BEGAN_S, ENDS_S)
    run.add_prompt(Reply(11.0, 12.0, (), 40, 1, 0), 40)
    assert run.first_token_s == [1.0] and run.num_tokens == 40


SECONDS = st.floats(0.1, 100.0)


@given(SECONDS, SECONDS, SECONDS)
def test_long_prompts_are_sent_to_the_end(warm_s: float, watched_s: float, every_s: float) -> None:
    load = StallLoad(warm_s=warm_s, watched_s=watched_s, every_s=every_s)
    ends_s = warm_s + watched_s
    assert (load.num_prompts - 1) * every_s < ends_s * (1 + compounded(4))
    assert load.num_prompts * every_s >= ends_s * (1 - compounded(4))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(plain_config()) as running:
        running.engine.script = lambda _: repeat(100)
        yield running


def run(served: Served, load: StallLoad, model: str = MODEL) -> StallRun:
    source = build_source(Path(BUNDLED), None)
    target = Target(parse_address(served.url).port, model, QUIRE.extra_fields)
    return run_load(load, target, "a", load.stream_asks(source, 1), load.prompt_asks(source, 1))


def test_long_prompts_come_beside_outputs(served: Served) -> None:
    begun = len(served.engine.submitted)
    found = run(served, SHORT)
    assert found.num_failed == 0, found.first_failure
    sent = served.engine.submitted[begun:]
    begin = 1  # the token that the tokenizer puts before every prompt
    lengths = [(len(each.prompt_token_ids) - begin, each.stopping.max_tokens) for each in sent]
    assert lengths.count((40, 1)) == 5 and lengths.count((6, 4)) == len(lengths) - 5 >= 2
    assert len({each.prompt_token_ids for each in sent}) == len(sent)
    assert 3 <= len(found.first_token_s) <= 5 and min(found.first_token_s) > 0
    assert found.figures().first_token_p50_ms is not None


def test_a_failure_leaves_no_figures(served: Served) -> None:
    found = run(served, SHORT, "no-such-model")
    assert found.num_failed and "404" in (found.first_failure or "")
    assert found.figures() == StallFigures(None, None, None, None)


def test_prompts_that_run_out_are_a_failure(served: Served) -> None:
    found = run(served, msgspec.structs.replace(SHORT, max_stream_requests=2))
    assert found.first_failure == "more than 2 outputs were answered"


def test_ratios_above_1_are_in_favour_of_the_first_server() -> None:
    first, second = build_rows(SERVERS, ROUNDS)
    assert first.ratios == {}
    assert second.ratios == {
        "total_tok_s": Ratio(5.0, 4.0, 6.0),
        "inter_token_p50_ms": Ratio(1.75, 1.5, 2.0),
        "inter_token_p99_ms": Ratio(25.0, 20.0, 30.0),
        "first_token_p50_ms": Ratio(1.25, 0.5, 2.0),
    }
    assert second.figures == StallFigures(100.0, 35.0, 950.0, 1250.0)


def test_rounds_with_failures_have_no_ratio() -> None:
    none = StallFigures(None, None, None, None)
    rounds = [ROUNDS[0], {**ROUNDS[1], "llamacpp": none}]
    first, second = build_rows(SERVERS, rounds)
    assert first.num_invalid == 0 and second.num_invalid == 1
    assert second.ratios["total_tok_s"] == Ratio(4.0, 4.0, 4.0)
    assert second.figures == ROUNDS[0]["llamacpp"] and first.figures.total_tok_s == 500.0
    _, never = build_rows(SERVERS, [{**ROUNDS[0], "llamacpp": none}])
    assert never.ratios == {} and never.figures == none


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    new, old = record(), record("2026-01-01 03:04 UTC")
    assert new.save(tmp_path).name == "2026-01-02-03-04.json"
    old.save(tmp_path)
    assert load_stalls(tmp_path) == [old, new]


def test_the_table_has_the_newest_of_each_model_and_its_options() -> None:
    plain = msgspec.structs.replace(SERVERS[0], options="--target-itl-ms 41.0")
    again = msgspec.structs.replace(SERVERS[0], options="--quantization int8 --target-itl-ms 31.0")
    records = [
        record("2026-01-01 03:04 UTC"),
        record("2026-01-02 03:04 UTC", (plain, SERVERS[1])),
        record("2026-01-03 03:04 UTC", (again, SERVERS[1])),
    ]
    rows = cells(stall_tables(records))
    shown = [(row[1], row[2], row[-1]) for row in rows if row and row[0].startswith("small")]
    assert shown == [
        ("quire", "`--target-itl-ms 41.0`", "2026-01-02, abcdef0"),
        ("llamacpp", "", "2026-01-02, abcdef0"),
        ("quire", "`--quantization int8 --target-itl-ms 31.0`", "2026-01-03, abcdef0"),
        ("llamacpp", "", "2026-01-03, abcdef0"),
    ]
    assert "Not recorded" in stall_tables([])


def test_a_record_tells_how_it_was_made() -> None:
    text = record_text(record())
    figures = ["100; **5.00** (4.00-6.00)", "35.0; **1.75** (1.50-2.00)"]
    assert ["small-Q8_0.gguf", "llamacpp", "", *figures] in [row[:5] for row in cells(text)]
    assert "2 cores of AMD EPYC" in text and "took 10.0 ms" in text


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").touch()
    return tmp_path


def parsed(model_dir: Path, *argv: str, **environment: str) -> StallSettings:
    return parse_stalls(["--model", str(model_dir), *argv], environment)


def test_each_server_has_its_own_model_program_and_options(model_dir: Path) -> None:
    settings = parsed(
        model_dir,
        *("--server", "quire", "args=--quantization int8 --seed=3"),
        *("--server", "llamacpp", "model=/x.gguf", "program=/mine"),
        *("--server", "vllm", "--server", "quire"),
        *("--itl-steps", "3", "--record"),
        BENCH_VLLM_PROGRAM="/venv/python",
        BENCH_LLAMACPP_PROGRAM="/other",
    )
    first, second, third, last = settings.launches
    assert first.options == ("--quantization", "int8", "--seed=3") and first.model_path == model_dir
    assert (second.program, second.model_path) == ("/mine", Path("/x.gguf"))
    assert third.program == "/venv/python"
    assert last.label == "quire-2" and last.program == QUIRE.program
    assert settings.itl_steps == 3 and settings.is_recorded and settings.load == StallLoad()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([], "--server"),
        (["--server", "nobody"], "--server nobody: must be one of llamacpp, "),
        (["--server", "vllm", "x.gguf"], "--server vllm x.gguf: must begin with model=, "),
        (["--server", "vllm", "--itl-steps", "3"], "needs quire as the first server"),
        (
            ["--server", "quire", "args=--target-itl-ms 4", "--itl-steps", "3"],
            "without --target-itl-ms",
        ),
        (["--server", "quire", "--itl-steps", "0"], "must be above 0"),
        (["--server", "quire", "--watched-s", "nan"], "must be above 0"),
        (["--server", "quire", "--watched-s", "2", "--record"], "is not recorded"),
        (["--server", "quire", "--repeats", "0"], "at least 1"),
    ],
)
def test_wrong_options_are_refused(
    model_dir: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], says: str
) -> None:
    with pytest.raises(SystemExit):
        parsed(model_dir, *wrong)
    assert says in capsys.readouterr().err


def test_a_model_without_a_tokenizer_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(tmp_path, "--server", "quire")
    assert "holds no tokenizer.json" in capsys.readouterr().err
