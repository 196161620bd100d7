"""The command `quire bench`: it finds the servers, measures, prints and writes.

The exit status is 0, or 1 if a request failed or nothing could be measured.
"""

import os
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from quire.progress import Progress
from quire.version import __version__
from quire.workbench.bench.exchange import ServerAddress, parse_address
from quire.workbench.bench.options import BenchOptions
from quire.workbench.bench.plot import draw
from quire.workbench.bench.probe import Server, find_server
from quire.workbench.bench.processes import own_server
from quire.workbench.bench.prompts import PromptGenerator, common_pool
from quire.workbench.bench.ratios import WorkloadRun
from quire.workbench.bench.report import BenchReport, ServerFacts, show
from quire.workbench.bench.server_client import BenchError, ServerClient
from quire.workbench.bench.session import Session, fit
from quire.workbench.bench.workloads import Workload

FAILED = 1
INTERRUPTED = 130
SECRET_FLAGS = ("--api-key", "--tenant-secret")
LABELS = ("A", "B")


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of the servers; `first` None stands for a server that is started here."""

    first: ServerAddress | None
    second: ServerAddress | None


def read_addresses(options: BenchOptions) -> Addresses:
    """Return the addresses that the options give. Raises ValueError, which names the flag."""

    def parsed(flag: str, url: str | None) -> ServerAddress | None:
        try:
            return None if url is None else parse_address(url)
        except ValueError as error:
            raise ValueError(f"{flag}: {error}") from None

    return Addresses(parsed("--url", options.url), parsed("--vs", options.vs))


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of the command; `argv` are its arguments after `quire`, `seed` makes the prompts."""

    options: BenchOptions
    addresses: Addresses
    argv: tuple[str, ...]
    seed: int


def run(invocation: Invocation) -> int:
    """Measure, print and write; return the exit status."""
    try:
        report = measure(invocation)
    except BenchError as error:
        print(f"quire bench: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    print(show(report))
    options = invocation.options
    if options.json_path is not None:
        options.json_path.write_bytes(encode(report))
    if options.plot_path is not None:
        draw(report, options.plot_path)
    return FAILED if report.num_failed else 0


def encode(report: BenchReport) -> bytes:
    """Return the report with the ratios that follow from it, as indented JSON."""
    ratios = msgspec.to_builtins(report.comparisons())
    return msgspec.json.format(
        msgspec.json.encode({**msgspec.to_builtins(report), "ratios": ratios})
    )


def measure(invocation: Invocation) -> BenchReport:
    """Measure all that was asked for, and stop every server that was started. Raises BenchError."""
    options = invocation.options
    startup_s: tuple[float, ...] = ()
    if options.measures_startup:
        startup_s = tuple(_startup_times(options))
    if not options.workloads:
        return _report(invocation, startup_s=startup_s)
    with ExitStack() as stack:
        first = invocation.addresses.first
        if first is None:
            _print_status("starting quire serve")
            first = parse_address(stack.enter_context(own_server(options.serve_args)).url)
        servers = _find_servers(options, first, invocation.addresses.second)
        return _measure_load(invocation, servers, startup_s)


def _print_status(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class LoadProgress:
    """Shows the progress of the rounds, on a terminal by their requests."""

    def __init__(self, progress: Progress, num_requests: int) -> None:
        self._progress = progress
        self._num_requests = num_requests
        self._num_done = 0
        self._load = ""

    def begin(self, load: str) -> None:
        self._load = load
        self._show()

    def count(self) -> None:
        self._num_done += 1
        self._show()

    def _show(self) -> None:
        self._progress.show(self._load, self._num_done, self._num_requests)


def _startup_times(options: BenchOptions) -> Iterator[float]:
    for index in range(options.num_repeats):
        _print_status(f"starting quire serve, {index + 1} of {options.num_repeats}")
        with own_server(options.serve_args) as own:
            yield own.startup_s


def _find_servers(
    options: BenchOptions, first: ServerAddress, second: ServerAddress | None
) -> tuple[Server, ...]:
    addresses = [first] if second is None else [first, second]
    return tuple(
        find_server(label, ServerClient(address, options.api_key), options.model)
        for label, address in zip(LABELS, addresses, strict=False)
    )


def _measure_load(
    invocation: Invocation, servers: tuple[Server, ...], startup_s: tuple[float, ...]
) -> BenchReport:
    options = invocation.options
    prompts = PromptGenerator(servers[0].rate, common_pool([server.pool for server in servers]))
    workloads, notes = _fit_all(options, servers, is_exact=bool(prompts.pool))
    num_requests = sum(each.num_requests for each in workloads) * len(servers)
    total = num_requests * options.num_repeats
    with closing(Progress(sys.stderr, _print_status, unit="req")) as progress:
        shown = LoadProgress(progress, total)
        session = Session(
            servers,
            workloads,
            prompts,
            seed=invocation.seed,
            on_load=shown.begin,
            on_request=shown.count,
        )
        session.warm_up()
        runs = tuple(session.rounds(options.num_repeats))
    return _report(
        invocation,
        startup_s=startup_s,
        session=session,
        runs=runs,
        notes=notes,
    )


def _fit_all(
    options: BenchOptions, servers: tuple[Server, ...], *, is_exact: bool
) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
    """Return the workloads that fit the context of every server, and notes on prompts that were
    cut. Raises BenchError where the length of a prompt was asked for and does not fit."""
    limits = [server.max_model_len for server in servers if server.max_model_len is not None]
    most = min(limits, default=None)
    fitted = tuple(fit(each, most, is_exact=is_exact) for each in options.workloads)
    cut = [
        (new.name, old.num_prompt_tokens, new.num_prompt_tokens)
        for old, new in zip(options.workloads, fitted, strict=True)
        if old != new
    ]
    if cut and options.num_input_tokens is not None:
        name, wanted, available = cut[0]
        raise BenchError(
            f"{name}: {wanted} input tokens asked, there is room for {available} of {most}"
        )
    notes = [
        f"{name}: prompts of {available} tokens, not {wanted}: the context is {most}"
        for name, wanted, available in cut
    ]
    return fitted, tuple(notes)


def without_secrets(argv: Sequence[str]) -> str:
    """Return the command line for the report, keys replaced by `***`."""
    shown = []
    hides_next = False
    for word in argv:
        flag, has_value, _ = word.partition("=")
        is_secret = any(len(flag) > 3 and secret.startswith(flag) for secret in SECRET_FLAGS)
        shown.append("***" if hides_next else f"{flag}=***" if is_secret and has_value else word)
        hides_next = is_secret and not has_value and not hides_next
    return shlex.join(["quire", *shown])


def _report(
    invocation: Invocation,
    *,
    startup_s: tuple[float, ...],
    session: Session | None = None,
    runs: tuple[WorkloadRun, ...] = (),
    notes: tuple[str, ...] = (),
) -> BenchReport:
    return BenchReport(
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        command=without_secrets(invocation.argv),
        quire=__version__,
        python=platform.python_version(),
        machine=f"{platform.platform()}, {os.cpu_count()} CPUs",
        seed=invocation.seed,
        prompts=session.prompts.kind if session else "",
        notes=notes,
        servers=tuple(_facts(server) for server in session.servers) if session else (),
        startup_s=startup_s,
        workloads=session.workloads if session else (),
        runs=runs,
    )


def _facts(server: Server) -> ServerFacts:
    return ServerFacts(
        label=server.label,
        url=server.client.address.url,
        version=server.version,
        model=server.model,
        path=server.dialect.path,
        asks_ignore_eos=server.dialect.asks_ignore_eos,
    )
