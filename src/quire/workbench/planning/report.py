"""Plans in words: one by itself, or two beside each other."""

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quire.cache.sizing import MIB
from quire.engine.startup.receipt import receipt_text
from quire.workbench.planning.forecast import Forecast
from quire.workbench.planning.plan import NUM_REQUESTS, ServingPlan
from quire.workbench.simulation.table import lines_of as table_lines

NOTHING = "-"


class Row(NamedTuple):
    """A figure of a plan; `value` is None where it has none."""

    label: str
    value: float | None
    unit: str = ""


def lines_of(plan: ServingPlan) -> Iterator[str]:
    """Yield the lines of a plan."""
    device = plan.device
    yield f"plan of {plan.model} on {device.name}"
    rates = [f"{device.flops_of(each) / 1e12:,.3g} TFLOP/s in {each}" for each in device.flops_s]
    yield f"  reads {device.bytes_s / 1e9:,.1f} GB/s, computes {', '.join(rates)}"
    yield f"  ({device.source or 'as its file says'})"
    if plan.facts is None:
        yield f"it would NOT start: {plan.why_not}"
        yield f"  weights {_mib(plan.weight_bytes)}; K and V {plan.token_bytes:,} bytes a token"
        if plan.fitting_len:
            yield f"  it would start with --max-model-len {plan.fitting_len}"
        return
    yield receipt_text(plan.facts)
    yield from _forecast_lines(plan)
    yield from (f"note: {each}" for each in plan.notes)
    yield f"serve it by: {shlex.join(plan.command)}"


def diff_lines(first: ServingPlan, second: ServingPlan) -> Iterator[str]:
    """Yield the lines of two plans beside each other, with what changes from one to the other."""
    yield f"plans of {first.model}"
    yield f"  A: {first.device.name}, {shlex.join(first.options) or 'no options'}"
    yield f"  B: {second.device.name}, {shlex.join(second.options) or 'no options'}"
    for name, plan in (("A", first), ("B", second)):
        if plan.facts is None:
            yield f"  {name} would NOT start: {plan.why_not}"
    rows = [("", "A", "B", "change")]
    for a, b in zip(rows_of(first), rows_of(second), strict=True):
        rows.append((_label(a), _shown(a.value), _shown(b.value), change(a, b)))
    yield from table_lines(rows)


def rows_of(plan: ServingPlan) -> list[Row]:
    """Return the figures of a plan that are compared; the same ones of every plan."""
    facts = plan.facts
    receipt = {} if facts is None else {line.kind: line.num_bytes for line in facts.receipt}
    kinds = ("device", "activation", "scratch", "graphs", "kv", "swap", "unused")
    memory = None if facts is None else facts.memory
    found = {each.burst.num_requests: each for each in plan.forecasts}
    return [
        Row("weights", plan.weight_bytes / MIB, "MiB"),
        *(Row(kind, receipt[kind] / MIB if receipt else None, "MiB") for kind in kinds),
        Row("K and V of a token", plan.token_bytes, "bytes"),
        Row("tokens in KV memory", None if memory is None else memory.kv_tokens),
        Row("longest request", None if facts is None else facts.max_model_len, "tokens"),
        Row("reachable context", None if memory is None else memory.max_model_len_fits, "tokens"),
        Row("requests of that length at once", None if memory is None else memory.max_concurrency),
        Row("tokens of a step", None if facts is None else facts.max_num_batched_tokens),
        *(row for number in NUM_REQUESTS for row in _forecast_rows(number, found.get(number))),
    ]


def change(a: Row, b: Row) -> str:
    """Return by how much a figure changes, in percent."""
    if a.value is None or b.value is None:
        return NOTHING
    if a.value == b.value:
        return "="
    return NOTHING if not a.value else f"{100 * (b.value / a.value - 1):+.1f} %"


def _forecast_lines(plan: ServingPlan) -> Iterator[str]:
    burst = plan.forecasts[0].burst
    yield (
        f"forecast for requests that come at once, {burst.num_input_tokens} tokens in, "
        f"{burst.num_output_tokens} out:"
    )
    rows: list[Sequence[str]] = [
        ("  requests", "TTFT p50", "p99", "inter-token p50", "p99", "output tok/s")
    ]
    for each in plan.forecasts:
        figures = each.figures
        first, inter = figures.first_token, figures.inter_token
        times = (first.p50_ms, first.p99_ms, inter.p50_ms, inter.p99_ms)
        shown = (*map(_time, times), f"{figures.output_tok_s:,.1f}")
        rows.append((f"  {each.burst.num_requests:8}", *shown))
    yield from table_lines(rows)


def _forecast_rows(number: int, found: Forecast | None) -> Iterator[Row]:
    """Yield the figures of a forecast; without values where there is none."""
    noun = "request" if number == 1 else "requests"
    figures = None if found is None else found.figures
    ttft_ms, itl_ms, rate = (
        (None, None, None)
        if figures is None
        else (figures.first_token.p50_ms, figures.inter_token.p50_ms, figures.output_tok_s)
    )
    yield Row(f"{number} {noun}: median TTFT", ttft_ms, "ms")
    yield Row(f"{number} {noun}: median inter-token time", itl_ms, "ms")
    yield Row(f"{number} {noun}: output tokens a second", rate)


def _label(row: Row) -> str:
    return f"{row.label}, {row.unit}" if row.unit else row.label


def _shown(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _time(value_ms: float | None) -> str:
    if value_ms is None:
        return NOTHING
    return f"{value_ms / 1e3:,.2f} s" if value_ms >= 1e3 else f"{value_ms:,.1f} ms"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.1f} MiB"
