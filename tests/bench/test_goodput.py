"""Rules for the share of prompts keep to what they say, and nobody beats the bound of goodput."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import msgspec
import pytest
from bench.contenders import CAPPED, CONTENDERS, FEW, Contender
from bench.goodput import ITL_S, OBJECTIVE, TTFT_S, BenchTrace, capacity, main
from bench.goodput_bound import DeviceJob, jobs_of, most_in_time
from bench.goodput_plot import draw
from bench.goodput_records import GoodputRecord, GoodputRow, goodput_table, newest_rows
from bench.pace_rules import DecodeFirst, FixedBudget, PrefillPressure
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Step
from quire.workbench.simulation.cost.cost_file import (
    CostFile,
    EngineShape,
    ServerCost,
    StepCoefficients,
)
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.simulation import (
    Costs,
    SimLoad,
    Simulation,
    scheduler_of,
    setup_of,
)
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest

NAMES = [each.name for each in CONTENDERS]
ROW = GoodputRow("a trace", 200, "512", 4.5, 0.9, 0.95, dict.fromkeys(NAMES, 0.5))
RECORD = GoodputRecord("2026-01-02 03:04 UTC", "abc", "python -m ...", (ROW,))
SHAPE = EngineShape(4000, 16, 64, 2048, 20_000)


def cost_of(*, base_s: float = 0.0, token_s: float = 0.001, pair_s: float = 0.0) -> CostFile:
    """A device whose steps take some seconds and some for each token, and no server."""
    step = StepCoefficients(base_s, (), (token_s,), pair_s=pair_s)
    return CostFile(1, "a model", "a device", "made", step, SHAPE)


def request(
    number: int, sent_s: float, num_prompt: int, num_outputs: int, shared: int = 0
) -> TracedRequest:
    """A request; its prompt begins with as many tokens that others have too."""
    parts = ((PromptPart(7, shared),) if shared else ()) + (PromptPart(100 + number, num_prompt),)
    return TracedRequest(f"r{number}", sent_s, parts, num_outputs)


@st.composite
def traces(draw: st.DrawFn) -> list[TracedRequest]:
    """Prompts of up to two seconds of a device with 1 ms a token, some that begin alike."""
    lengths, now, found = st.integers(1, 2000), 0.0, []
    for number in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from((0.0, 0.0, 0.05, 0.4, 1.5)))
        shared = draw(st.sampled_from((0, 0, 320)))
        found.append(request(number, now, draw(lengths), draw(st.integers(1, 40)), shared))
    return found


@st.composite
def made_costs(draw: st.DrawFn) -> CostFile:
    """Devices on which few tokens are cheap, and others; with a server before them."""
    base_s = draw(st.sampled_from((0.0, 0.005, 0.03)))
    knots, slopes = draw(st.sampled_from((((), (1e-3,)), ((32,), (1e-5, 1e-3)))))
    step = StepCoefficients(base_s, knots, slopes, 1e-5, 1e-5, 1e-7, 1e-7)
    server = draw(st.sampled_from((ServerCost(), ServerCost(0.01, 0.01, 0.001, 0.01))))
    return CostFile(1, "a model", "a device", "made", step, SHAPE, server=server)


@settings(max_examples=60, deadline=None)
@given(traces(), made_costs(), st.sampled_from(CONTENDERS))
def test_nobody_has_more_in_time_than_the_bound(
    requests: list[TracedRequest], cost: CostFile, contender: Contender
) -> None:
    answers = BenchTrace("made", requests, cost).run(requests, contender).clients.answers
    assert len(answers) == len(requests)
    assert sum(map(OBJECTIVE.is_met, answers)) <= most_in_time(requests, cost, TTFT_S, ITL_S)


def _in_time(jobs: Sequence[DeviceJob]) -> bool:
    """Whether jobs are all in time, computed as they came."""
    done_s = 0.0
    for job in jobs:
        done_s = max(done_s, job.sent_s) + job.prompt_s
        if done_s > job.first_due_s:
            return False
    return True


@settings(max_examples=60, deadline=None)
@given(traces())
def test_of_prompts_alone_the_bound_is_what_can_be_tried(requests: list[TracedRequest]) -> None:
    prompts = [TracedRequest(each.id, each.sent_s, each.parts, 1) for each in requests[:9]]
    cost = cost_of()
    jobs = list(jobs_of(prompts, cost, TTFT_S, ITL_S))
    tried = (
        number
        for number in range(len(jobs), -1, -1)
        if any(map(_in_time, combinations(jobs, number)))
    )
    assert most_in_time(prompts, cost, TTFT_S, ITL_S) == next(tried)


def test_the_bound_counts_outputs_and_what_is_found() -> None:
    cost = cost_of()
    at_once = [request(number, 0.0, 400, 1) for number in range(4)]
    assert most_in_time(at_once, cost, TTFT_S, ITL_S) == 2
    found = [request(number, 0.0, 80, 1, shared=320) for number in range(4)]
    assert most_in_time(found, cost, TTFT_S, ITL_S) == 4
    spoken = [request(number, 0.0, 10, 1000) for number in range(100)]
    assert most_in_time(spoken, cost, TTFT_S, ITL_S) == 50  # of 1.01 s within 50.95 s


def test_a_request_that_the_engine_refuses_is_in_time_under_no_rule() -> None:
    long = [request(0, 0.0, 100, 20_000)]
    assert most_in_time(long, cost_of(token_s=1e-9), TTFT_S, ITL_S) == 0


def steps_of(contender: Contender, requests: Sequence[TracedRequest]) -> list[Step]:
    """The steps that a rule leads to on a device of 1 ms a token."""
    steps: list[Step] = []
    shape = replace(SHAPE, max_num_batched_tokens=contender.num_tokens)
    engine = setup_of(shape, scheduler_of(shape))
    engine = type(engine)(engine.scheduler, engine.cache, rule_of=contender.rule_of)
    costs = Costs(FittedCost(cost_of(base_s=0.005).step))
    load = SimLoad(requests)
    Simulation(engine, costs, load, on_step=lambda times: steps.append(times.step)).run()
    return steps


def beside_outputs(step: Step, lengths: Mapping[str, int]) -> int | None:
    """The tokens of prompts in chunks of a step beside outputs; None where it has no outputs."""
    is_output = [each.start >= lengths[each.request_id] for each in step.chunks]
    chunks = (each.num_tokens for each in step.chunks if each.num_tokens > 1)
    return sum(chunks) if any(is_output) else None


@settings(max_examples=30, deadline=None)
@given(traces())
def test_decode_first_computes_few_tokens_of_prompts_beside_outputs(
    requests: list[TracedRequest],
) -> None:
    contender = Contender("decode first", 2048, lambda _: DecodeFirst(FEW))
    lengths = {each.id: each.num_prompt_tokens for each in requests}
    found = [beside_outputs(each, lengths) for each in steps_of(contender, requests)]
    assert all(each is None or each <= FEW for each in found)


@settings(max_examples=30, deadline=None)
@given(traces(), st.sampled_from((17, 100, 655)))
def test_a_threshold_is_the_most_of_one_prompt_in_a_step(
    requests: list[TracedRequest], threshold: int
) -> None:
    contender = Contender("vLLM", 2048, lambda _: FixedBudget(threshold))
    steps = steps_of(contender, requests)
    chunks = [each.num_tokens for step in steps for each in step.chunks]
    assert max(chunks) <= threshold
    assert sum(each.num_tokens for each in steps) >= max(len(requests), max(chunks))


def test_under_pressure_a_step_has_fewer_tokens() -> None:
    def rule(scheduler: Scheduler) -> PrefillPressure:
        return PrefillPressure(CAPPED, lambda: scheduler.stats.num_waiting)

    contender = Contender("P-PAS", 2048, rule)
    running = request(0, 0.0, 8, 400)
    alone = steps_of(contender, [running, request(1, 0.5, 3000, 1)])
    assert max(each.num_tokens for each in alone) == 2048
    pressed = steps_of(contender, [running, *(request(n, 0.5, 3000, 1) for n in (1, 2, 3))])
    sizes = [each.num_tokens for each in pressed if len(each.chunks) > 1]
    assert sizes[0] == CAPPED and max(sizes) == 2048  # the last prompt is alone again


def test_the_capacity_is_what_the_best_budget_serves() -> None:
    requests = [request(number, 0.1 * number, 900, 2) for number in range(10)]
    best, served = capacity(BenchTrace("made", requests, cost_of(base_s=0.5)))
    assert best == "4,096"
    assert 10 / 11.1 < served < 10 / 11  # 9 s of prompts and four steps


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = RECORD.save(tmp_path)
    assert msgspec.json.decode(path.read_bytes(), type=GoodputRecord) == RECORD
    newer, other = replace(ROW, bound=0.9), replace(ROW, load=0.5)
    replace(RECORD, date="2026-01-03 03:04 UTC", rows=(newer, other)).save(tmp_path)
    assert newest_rows(tmp_path) == [other, newer]


def test_the_table_shows_what_targets_gain() -> None:
    row = replace(ROW, in_time={**ROW.in_time, "256": 0.2, "targets": 0.75})
    last = goodput_table([row]).splitlines()[-1]
    cells = [cell.strip() for cell in last.split("|")[1:-1]]
    shown = ["a trace", "0.9", "50.0% (512)", "50.0%", "50.0%", "50.0%", "50.0%", "75.0%"]
    assert cells == [*shown, "1.50", "95.0%"]


def test_all_is_compared_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stamps = (f"2023-11-16 18:17:{number:02}.0000000,900,5" for number in range(12))
    text = "\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *stamps, ""))
    (tmp_path / "azure_llm_2023_code.csv").write_text(text)
    words = ("--data", str(tmp_path), "--only", "Azure code", "--load", "0.5")
    main(words)
    told = capsys.readouterr().out
    assert "Azure code: the first 12 requests; capacity" in told and told.count("100.0%") >= 2
    draw([ROW, replace(ROW, load=1.0)], tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
