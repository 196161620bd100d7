"""The pace of running outputs while a long prompt comes every few seconds, on servers in turn.

    python -m bench.stalls --model MODELS/smollm2 --data DATA --itl-steps 3 --repeats 2 \\
        --server quire --server vllm --server llamacpp model=MODELS/smollm2-bf16.gguf

Eight clients each ask for one output after the other, and every four seconds somebody sends a
prompt of 1,024 tokens and asks for one token. All servers stay up; while one is measured, the
others are stopped, and every second round goes in the other order. Exits with 1 if any request
failed or was answered with the wrong number of tokens.
"""

import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.compare import end_on_sigterm
from bench.load import Target
from bench.machine import busy_cores, read_commit, read_machine, without_folders
from bench.records import DATE_FORMAT
from bench.requests import RequestSource, build_source
from bench.servers import Launch, Server, running
from bench.stall_load import StallRun, run_load
from bench.stall_records import StallRecord, StallServer, build_rows, record_text
from bench.stall_settings import TARGET, StallSettings, parse_stalls

REPOSITORY = Path(__file__).resolve().parents[1]
STEP_WATCHED_S, STEP_WARM_S = 10.0, 4.0
"""The seconds for which steps without long prompts are watched, and those before."""


def _target(server: Server) -> Target:
    peer = server.launch.peer
    return Target(server.port, peer.model_name(server.launch.model_path), peer.extra_fields)


def _decode_step_ms(settings: StallSettings, source: RequestSource, server: Server) -> float:
    """Return the milliseconds between two tokens of the clients' outputs without long prompts."""
    load = msgspec.structs.replace(settings.load, watched_s=STEP_WATCHED_S, warm_s=STEP_WARM_S)
    streams = load.stream_asks(source, settings.seed - 1)
    run = run_load(load, _target(server), server.launch.label, streams, prompts=())
    step_ms = run.figures().inter_token_p50_ms
    if step_ms is None:
        raise SystemExit(f"{server.launch.label}: {run.first_failure or 'no gap was seen'}")
    return step_ms


def _line(run: StallRun) -> str:
    told = ", ".join(
        f"{name} {'-' if value is None else f'{value:.1f}'}"
        for name, value in msgspec.structs.asdict(run.figures()).items()
    )
    failed = f"  !! {run.num_failed} failed: {run.first_failure}" if run.num_failed else ""
    return f"{run.label}: {told}; {len(run.first_token_s)} long prompts{failed}"


def _measure(
    settings: StallSettings, source: RequestSource, servers: Sequence[Server]
) -> list[dict[str, StallRun]]:
    """Return the runs of each round by the labels of their servers."""
    rounds = []
    for index in range(settings.num_repeats):
        streams = settings.load.stream_asks(source, settings.seed + index)
        prompts = settings.load.prompt_asks(source, settings.seed + index)
        runs: dict[str, StallRun] = {}
        for server in servers if index % 2 == 0 else servers[::-1]:
            label = server.launch.label
            with ExitStack() as paused:
                for other in servers:
                    if other is not server:
                        paused.enter_context(other.paused())
                runs[label] = run_load(settings.load, _target(server), label, streams, prompts)
            server.check_alive()
            print(f"round {index + 1}/{settings.num_repeats} {_line(runs[label])}", flush=True)
        rounds.append(runs)
    return rounds


def _server(launch: Launch) -> StallServer:
    options = without_folders(shlex.join(launch.options))
    return StallServer(launch.label, launch.version(), options, launch.model_path.name)


def _compare(
    settings: StallSettings, source: RequestSource, log_dir: Path
) -> tuple[float | None, tuple[Launch, ...], list[dict[str, StallRun]]]:
    """Return the first server's step if its target is made of it, the servers as they were started,
    and the runs of all rounds."""

    def up(launch: Launch) -> Server:
        log_path = log_dir / f"{launch.label}.log"
        timeout_s = settings.start_timeout_s
        return stack.enter_context(running(launch, log_path=log_path, start_timeout_s=timeout_s))

    launches, step_ms = settings.launches, None
    if settings.itl_steps is not None:
        with ExitStack() as stack:
            step_ms = _decode_step_ms(settings, source, up(launches[0]))
        target = (TARGET, f"{settings.itl_steps * step_ms:.1f}")
        print(
            f"a step without long prompts takes {step_ms:.1f} ms: {shlex.join(target)}", flush=True
        )
        launches = (replace(launches[0], options=(*launches[0].options, *target)), *launches[1:])
    with ExitStack() as stack:
        return step_ms, launches, _measure(settings, source, [up(each) for each in launches])


def main() -> None:
    """Measure all servers in turn, print the table, and write what was asked for."""
    signal.signal(signal.SIGTERM, end_on_sigterm)
    settings = parse_stalls(sys.argv[1:], os.environ)
    log_dir = settings.log_dir or Path(tempfile.mkdtemp(prefix="quire-stalls-"))
    log_dir.mkdir(parents=True, exist_ok=True)
    print(f"server logs: {log_dir}", flush=True)
    source, busy = build_source(settings.model_dir, settings.data_dir), busy_cores()
    step_ms, launches, rounds = _compare(settings, source, log_dir)
    figures = [{label: run.figures() for label, run in runs.items()} for runs in rounds]
    record = StallRecord(
        date=datetime.now(UTC).strftime(DATE_FORMAT),
        commit=read_commit(REPOSITORY),
        command=without_folders(shlex.join(["python", "-m", "bench.stalls", *sys.argv[1:]])),
        machine=read_machine(),
        busy_cores=busy,
        model=settings.model_dir.resolve().name,
        prompts=source.name,
        load=settings.load,
        num_rounds=settings.num_repeats,
        decode_step_ms=step_ms,
        rows=build_rows([_server(each) for each in launches], figures),
    )
    print(f"\n{record_text(record)}")
    if settings.json_path is not None:
        runs = [asdict(run) for each in rounds for run in each.values()]
        settings.json_path.write_bytes(msgspec.json.encode({"record": record, "runs": runs}))
    if settings.is_recorded:
        print(f"recorded in {record.save().name}")
    if any(run.num_failed for each in rounds for run in each.values()):
        sys.exit("some requests failed or were answered with the wrong number of tokens")


if __name__ == "__main__":
    main()
