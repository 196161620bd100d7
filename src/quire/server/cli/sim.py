"""The command `quire sim`: the scheduler and cache under a trace, in virtual time."""

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from itertools import product

import msgspec
from msgspec.structs import replace as replaced

from quire.cache.config import CacheConfig
from quire.cache.states.policy import SnapshotPolicy
from quire.engine.recording.flight_file import FlightFileError
from quire.output_files import check_plotting
from quire.process_age import uncollected
from quire.progress import Progress
from quire.scheduler.policy import PolicyName, QueueOrder
from quire.server.app.exit_codes import USAGE_ERROR
from quire.server.cli.output import print_line
from quire.version import __version__
from quire.workbench.simulation.against_record import (
    ScheduleDiffers,
    check_schedule,
    engine_of,
    recorded_outcome,
)
from quire.workbench.simulation.calibrate import calibrate
from quire.workbench.simulation.cost.cost_file import (
    CostFile,
    CostFileError,
    ServerCost,
    load_cost,
    save_cost,
)
from quire.workbench.simulation.cost.fit import TooFewSteps
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.figures import Objective, figures_of
from quire.workbench.simulation.plot import draw
from quire.workbench.simulation.sim_report import SimReport, SimRun, fit_lines, lines_of_report
from quire.workbench.simulation.simulation import (
    Costs,
    EngineSetup,
    SimLoad,
    Simulation,
    SimulationResult,
    scheduler_of,
    setup_of,
)
from quire.workbench.simulation.sweep import SweepResult, grid_of, sweep
from quire.workbench.simulation.traces.read import Trace, read_trace
from quire.workbench.simulation.traces.trace_error import TraceError
from quire.workbench.simulation.traces.traced_request import (
    asking_for,
    assigned,
    sped_up,
    with_targets,
)
from quire.workbench.simulation.virtual.fleet import FleetSize
from quire.workbench.simulation.virtual.sending import LinkSpeed

RECORDED = "recorded"


def sim_command(arguments: Mapping[str, object]) -> int:
    """Simulate, or calibrate. Return the exit code."""
    flags = argparse.Namespace(**arguments)
    try:
        _check(flags)
        progress = Progress(sys.stderr, _say, unit="")
        with closing(progress), uncollected():
            lines = _calibrated(flags, progress) if flags.calibrate else _simulated(flags, progress)
    except (ValueError, CostFileError, TooFewSteps) as error:
        print(f"quire sim: {error}", file=sys.stderr)
        return USAGE_ERROR
    except (TraceError, FlightFileError, OSError) as error:
        print(f"quire sim: {flags.trace or 'a record'}: {error}", file=sys.stderr)
        return USAGE_ERROR
    print_line("\n".join(lines))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _check(flags: argparse.Namespace) -> None:
    """Raise ValueError for flags that do not go together."""
    if flags.calibrate:
        if flags.trace is not None:
            raise ValueError("--calibrate fits a cost model; leave TRACE out")
        if not flags.record:
            raise ValueError("--calibrate needs a flight record: --record FILE.flight")
        return
    if flags.client is not None:
        raise ValueError("--client is for --calibrate")
    if flags.record:
        raise ValueError("--record is for --calibrate; to simulate a record, name it as TRACE")
    if flags.trace is None:
        raise ValueError("TRACE is missing: a file, or a shape such as poisson:rate=4")
    _check_engines(flags)
    if flags.sweep and not _objective(flags).is_given:
        raise ValueError("--sweep needs an objective: --slo-ttft-ms, --slo-itl-ms or --slo-e2e-ms")
    if flags.plot is not None:
        check_plotting()


def _check_engines(flags: argparse.Namespace) -> None:
    """Raise ValueError for numbers of engines that make no sense."""
    num_prefill = max(flags.prefill_engines)
    if num_prefill >= flags.engines:
        raise ValueError(
            f"--prefill-engines {num_prefill} of --engines {flags.engines} leave none that "
            "continues what they compute: pass more --engines"
        )
    if flags.sweep and len(flags.prefill_engines) > 1:
        raise ValueError("--sweep takes one number of --prefill-engines")
    if flags.sweep and len(flags.queue_order) > 1:
        raise ValueError("--sweep takes one --queue-order")


def _calibrated(flags: argparse.Namespace, progress: Progress) -> list[str]:
    num = len(flags.record)
    cost = calibrate(
        flags.record, flags.client, lambda done: progress.show("reading records", done, num)
    )
    save_cost(cost, flags.calibrate)
    return list(fit_lines(cost))


def _simulated(flags: argparse.Namespace, progress: Progress) -> list[str]:
    cost = load_cost(flags.cost)
    progress.show("reading the trace", 0, 1)
    trace = read_trace(flags.trace, flags.seed)
    base = _simulation(flags, cost, trace)
    objective = _objective(flags)
    report = _report(flags, cost, objective)
    if flags.sweep:
        swept = _swept(flags, base, objective, progress)
        return _finished(flags, replaced(report, swept=tuple(swept)))
    outcomes = _outcomes(flags, cost, base, trace, progress)
    runs = tuple(SimRun(name, figures_of(each, objective)) for name, each in outcomes)
    report = replaced(report, runs=runs, schedule=_schedule(trace))
    if flags.plot is not None:
        draw(f"{report.trace}, {cost.model}, {cost.machine}", outcomes, flags.plot)
    return _finished(flags, report)


def _finished(flags: argparse.Namespace, report: SimReport) -> list[str]:
    """Write the report where it is wanted, and return its lines."""
    if flags.json is not None:
        flags.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return list(lines_of_report(report))


def _report(flags: argparse.Namespace, cost: CostFile, objective: Objective) -> SimReport:
    """Return a report without figures."""
    return SimReport(
        quire=__version__,
        trace=flags.trace,
        cost=flags.cost,
        model=cost.model,
        machine=cost.machine,
        seed=flags.seed,
        objective=objective,
    )


def _objective(flags: argparse.Namespace) -> Objective:
    return Objective(flags.slo_ttft_ms, flags.slo_itl_ms, flags.slo_e2e_ms, flags.slo_share)


def _simulation(flags: argparse.Namespace, cost: CostFile, trace: Trace) -> Simulation:
    """Return the simulation of the flags. A recorded run has the limits of its own engine, and its
    times are those of the engine, without a server."""
    requests = trace.load.requests[: flags.requests]
    if not requests:
        raise TraceError("it has no requests")
    drawn = assigned(
        requests,
        num_tenants=flags.tenants,
        num_priorities=flags.priorities,
        seed=flags.seed,
    )
    targets_s = [
        None if each is None else each / 1000
        for each in (flags.target_ttft_ms, flags.target_itl_ms)
    ]
    drawn = asking_for(with_targets(drawn, *targets_s), flags.max_tokens)
    load = SimLoad(sped_up(drawn, flags.speed_up), trace.load.concurrency)
    ratios = () if cost.fit is None else cost.fit.ratios
    server = cost.server if trace.run is None else ServerCost()
    costs = Costs(FittedCost(cost.step), cost.gap, server, ratios)
    if trace.run is None:
        engine = setup_of(cost.engine, scheduler_of(cost.engine))
    elif flags.engines > 1:
        raise TraceError("a recorded run is that of one engine: leave --engines out")
    else:
        engine = engine_of(trace.run)
    size = _size(flags, cost, flags.prefill_engines[0])
    return Simulation(_with_limits(engine, flags), costs, load, flags.seed, size=size)


def _size(flags: argparse.Namespace, cost: CostFile, num_prefill: int) -> FleetSize:
    """Return the engines of the flags. Raises CostFileError where nothing says what is sent."""
    if not num_prefill:
        return FleetSize(flags.engines)
    if not cost.engine.token_bytes:
        raise CostFileError(
            f"{flags.cost}: engine.token_bytes, the bytes of a token's keys and values, is not "
            "there, must be for --prefill-engines: `quire plan --cost` writes it"
        )
    speed = LinkSpeed(flags.link_gbit_s * 1e9 / 8, cost.engine.token_bytes)
    return FleetSize(flags.engines, num_prefill, speed)


def _with_limits(engine: EngineSetup, flags: argparse.Namespace) -> EngineSetup:
    """Return an engine with the limits that the flags give."""
    names = (
        *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_num_queued_reqs"),
        "keep_sessions",
    )
    given = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    if flags.queue_order:
        given["queue_order"] = flags.queue_order[0]
    scheduler = replace(engine.scheduler, **given)
    cache = replace(engine.cache, max_chunk_tokens=scheduler.max_num_batched_tokens)
    if flags.num_gpu_blocks_override is not None:
        cache = replace(cache, num_blocks=flags.num_gpu_blocks_override)
    if flags.num_recurrent_states is not None:
        cache = replace(cache, num_states=flags.num_recurrent_states)
    if flags.state_snapshot_interval is not None:
        cache = replace(cache, snapshots=_snapshots(cache, flags.state_snapshot_interval))
    if cache.num_states and max(flags.prefill_engines):
        raise ValueError(
            "--prefill-engines send keys and values alone, and states of recurrent layers stay "
            "where they are: leave it out for a model with such layers"
        )
    return replace(engine, scheduler=scheduler, cache=cache)


def _snapshots(cache: CacheConfig, interval: int) -> SnapshotPolicy:
    """Return the snapshots of a cache at an interval. Raises ValueError if it has no states."""
    if not cache.num_states:
        raise ValueError(
            "--state-snapshot-interval is for models with recurrent layers: pass "
            "--num-recurrent-states too, or the cost model of such a model"
        )
    return replace(cache.snapshots, interval=interval)


def _outcomes(
    flags: argparse.Namespace, cost: CostFile, base: Simulation, trace: Trace, progress: Progress
) -> list[tuple[str, SimulationResult]]:
    """Return the outcome of each policy and each number of engines for prompts, behind that of the
    recorded run, if there is one."""
    found = [] if trace.run is None else [(RECORDED, recorded_outcome(trace.run))]
    num = len(base.load.requests)
    orders = flags.queue_order or (base.engine.scheduler.queue_order,)
    for policy, order, num_prefill in product(flags.policy, orders, flags.prefill_engines):
        scheduler = replace(base.engine.scheduler, scheduling_policy=policy, queue_order=order)
        engine = replace(base.engine, scheduler=scheduler)
        tried = replace(base, engine=engine, size=_size(flags, cost, num_prefill))
        name = _name(policy, order, flags.engines, num_prefill)

        def show(num_ended: int, name: str = name) -> None:
            progress.show(f"simulating {name}", num_ended, num)

        show(0)
        found.append((name, tried.run(show)))
    return found


def _name(policy: PolicyName, order: QueueOrder, num_engines: int, num_prefill: int) -> str:
    """Return what a column of the report is called."""
    served = policy.value if order is QueueOrder.ARRIVAL else f"{policy}, {order}"
    if num_engines == 1:
        return served
    num_others = num_engines - num_prefill
    return f"{served}, {num_prefill} + {num_others}" if num_prefill else f"{served}, {num_engines}"


def _schedule(trace: Trace) -> str:
    """Return how far the steps of a recorded run come out the same with their own times."""
    run = trace.run
    if run is None:
        return ""
    try:
        num_same = check_schedule(run)
    except ScheduleDiffers as error:
        return f"with the recorded times it differs: {error}"
    return f"with the recorded times the same at each of {num_same} steps of {len(run.steps)}"


def _swept(
    flags: argparse.Namespace, base: Simulation, objective: Objective, progress: Progress
) -> list[SweepResult]:
    grid = grid_of(base.engine.scheduler, flags.policy)

    def show(done: int) -> None:
        progress.show("sweeping settings", done, len(grid))

    return sweep(base, grid, objective, show)
