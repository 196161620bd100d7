"""`quire bench` against Quire's real HTTP, and against servers with other behaviour."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from quire.server.cli.main import main
from quire.server.config import ApiKey
from tests.server.served import MODEL, Served, plain_config, serving
from tests.workbench.bench.scripted_server import ServerBehaviour, scripted_server

SMALL = ("--requests", "3", "--concurrency", "2", "--output-tokens", "5", "--repeats", "2")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(plain_config()) as made:
        yield made


def bench(*argv: str) -> int:
    return main(["bench", *argv])


def written(path: Path) -> dict[str, list[dict[str, dict[str, object]]]]:
    read: dict[str, list[dict[str, dict[str, object]]]] = json.loads(path.read_text())
    return read


def test_every_workload_is_measured_and_told(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, drawing = tmp_path / "all.json", tmp_path / "all.svg"
    paths = ("--json", str(out), "--plot", str(drawing))
    assert bench("all", "--url", served.url, *SMALL, *paths) == 0
    table = capsys.readouterr().out
    report = written(out)
    assert len(report["runs"]) == 4 * 2
    for run in report["runs"]:
        figures = run["figures"]
        assert (figures["num_requests"], figures["num_failed"]) == (3, 0)
        assert figures["num_output_tokens"] == 15
        samples = figures["samples"]
        assert isinstance(samples, dict)
        assert len(samples["first_token_ms"]) == len(samples["end_to_end_ms"]) == 3
        assert figures["num_cached_tokens"] == 9  # three each, as the scripted engine says
    for workload in report["workloads"]:
        assert str(workload["name"]) in table
    assert "prompts: token ids, exact" in table
    assert "prefill: prompts of 251 tokens, not 1024: the context is 256" in table
    assert ElementTree.fromstring(drawing.read_text()).tag.endswith("svg")


def test_prompts_are_as_long_as_asked(served: Served, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    asked = ("--input-tokens", "40", "--json", str(out))
    assert bench("prefix", "--url", served.url + "/v1/", *SMALL, *asked) == 0
    assert [run["figures"]["prompt_lengths"] for run in written(out)["runs"]] == [[40, 40]] * 2
    prompts = [request.prompt_token_ids for request in served.engine.submitted[-3:]]
    num_shared = 40 * 512 // 544
    assert len({prompt[:num_shared] for prompt in prompts}) == 1
    assert len(set(prompts)) == 3


def test_two_servers_take_turns_with_the_same_prompts(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    with serving(plain_config()) as other:
        given = ("--url", served.url, "--vs", other.url, "--json", str(out))
        assert bench("throughput", *SMALL, *given) == 0
        mine, theirs = (
            {request.prompt_token_ids for request in each.engine.submitted[-6:]}
            for each in (served, other)
        )
    assert mine == theirs
    assert [str(run["label"]) for run in written(out)["runs"]] == ["A", "B", "B", "A"]
    assert "A/B throughput: tokens/s " in capsys.readouterr().out
    (ratio,) = written(out)["ratios"]
    assert ratio["throughput"]["num_valid"] == 2


def test_other_server_is_asked_in_words_and_by_chat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    behaviour = ServerBehaviour(is_chat=True, takes_ignore_eos=False)
    with scripted_server(behaviour) as url:
        given = ("--url", url, "--input-tokens", "61", "--json", str(out))
        assert bench("latency", *SMALL, *given) == 0
    figures = [run["figures"] for run in written(out)["runs"]]
    assert [each["prompt_lengths"] for each in figures] == [[61, 61]] * 2
    said = capsys.readouterr().out
    assert "/v1/chat/completions, no ignore_eos" in said
    assert "prompts: words" in said


def test_replies_of_another_length_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(ServerBehaviour(max_output_tokens=4)) as url:
        assert bench("throughput", "--url", url, "--vs", url, *SMALL) == 0
    said = capsys.readouterr().out
    assert "round 1, throughput, A: 3 of 3 of another length than asked" in said
    assert "A/B throughput: tokens/s none valid" in said
    assert "6/6" in said


def test_nothing_is_assumed_without_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    with scripted_server(ServerBehaviour(tells_usage=False)) as url:
        assert bench("throughput", "--url", url, *SMALL, "--json", str(out)) == 0
    for run in written(out)["runs"]:
        figures = run["figures"]
        assert (figures["output_tok_s"], figures["num_prompt_tokens"]) == (None, None)
        assert figures["num_without_usage"] == 3
    assert "3 of 3 without usage" in capsys.readouterr().out


def test_failed_request_is_counted_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    # One to try the path, two to count words, two to warm up, and two of six.
    with scripted_server(ServerBehaviour(num_good=7)) as url:
        assert bench("throughput", "--url", url, *SMALL) == 1
    said = capsys.readouterr().out
    assert "status 503" in said and "full" in said
    assert "4/6" in said


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that is said where nothing can be measured."""
    assert bench("latency", *SMALL, *argv) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


def test_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert f"{url}: no server answers" in refusal(capsys, "--url", url)


def test_wrong_model_names_the_right_ones(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "--url", served.url, "--model", "none")
    assert "'none' does not exist" in said and MODEL in said
    with scripted_server(ServerBehaviour()) as url:
        assert "no model none; it lists m" in refusal(capsys, "--url", url, "--model", "none")


def test_wrong_key(capsys: pytest.CaptureFixture[str]) -> None:
    config = plain_config()
    with serving(replace(config, api_keys=(ApiKey("hush"),))) as guarded:
        assert "the API key is missing or wrong (401" in refusal(capsys, "--url", guarded.url)
        said = refusal(capsys, "--url", guarded.url, "--api-key", "loud")
        assert "401" in said and "loud" not in said
        assert bench("latency", "--url", guarded.url, "--api-key", "hush", *SMALL) == 0
    assert "hush" not in capsys.readouterr().out


@pytest.mark.parametrize("page", ["<html>hello</html>", '{"data": 5}', "\\ud800"])
def test_other_kind_of_server(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(ServerBehaviour(page=page)) as url:
        said = refusal(capsys, "--url", url)
    assert f"{url}: not an OpenAI-style server" in said


def test_prompt_that_does_not_fit_is_refused(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "--url", served.url, "--input-tokens", "300")
    assert "300 input tokens asked, there is room for 251 of 256" in said
    said = refusal(capsys, "--url", served.url, "--output-tokens", "256")
    assert "256 output tokens do not fit into a context of 256" in said
