"""Plans in words: one by itself, or two beside each other."""

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from quire.cache.sizing import MIB
from quire.engine.startup.receipt import receipt_text
from quire.planning.forecast import Forecast
from quire.planning.plan import NUM_REQUESTS, Plan

NOTHING = "-"


class Row(NamedTuple):
    """A figure of a plan; `value` is None where it has none."""

    label: str
    value: float | None
    unit: str = ""


def lines_of(plan: Plan) -> Iterator[str]:
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


def diff_lines(first: Plan, second: Plan) -> Iterator[str]:
    """Yield the lines of two plans beside each other, with what changes from one to the other."""
    yield f"plans of {first.model}"
    yield f"  A: {first.device.name}, {shlex.join(first.options) or 'no options'}"
    yield f"  B: {second.device.name}, {shlex.join(second.options) or 'no options'}"
    for name, plan in (("A", first), ("B", second)):
        if plan.facts is None:
            yield f"  {name} would NOT start: {plan.why_not}"
    yield f"{'':42} {'A':>14} {'B':>14} {'change':>9}"
    for a, b in zip(rows_of(first), rows_of(second), strict=True):
        yield f"{_label(a):42} {_shown(a.value):>14} {_shown(b.value):>14} {change(a, b):>9}"


def rows_of(plan: Plan) -> list[Row]:
    """Return the figures of a plan that are compared; the same ones of every plan."""
    facts = plan.facts
    receipt = {} if facts is None else {line.kind: line.num_bytes for line in facts.receipt}
    kinds = ("device", "activation", "scratch", "graphs", "kv", "swap", "unused")
    memory = None if facts is None else facts.memory
    found = {each.load.num_requests: each for each in plan.forecasts}
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


def _forecast_lines(plan: Plan) -> Iterator[str]:
    load = plan.forecasts[0].load
    yield (
        f"forecast for requests that come at once, {load.num_input_tokens} tokens in, "
        f"{load.num_output_tokens} out:"
    )
    yield "  requests  at once  TTFT mean   longest  inter-token  output tok/s"
    for each in plan.forecasts:
        yield (
            f"  {each.load.num_requests:8}  {each.num_running:7}  {_seconds(each.ttft_s):>9}  "
            f"{_seconds(each.max_ttft_s):>8}  {_seconds(each.itl_s):>11}  "
            f"{each.output_tokens_s:12,.1f}"
        )


def _forecast_rows(number: int, found: Forecast | None) -> Iterator[Row]:
    """Yield the figures of a forecast; without values where there is none."""
    noun = "request" if number == 1 else "requests"
    ttft_ms, itl_ms, rate = (
        (None, None, None)
        if found is None
        else (1e3 * found.ttft_s, 1e3 * found.itl_s, found.output_tokens_s)
    )
    yield Row(f"{number} {noun}: mean TTFT", ttft_ms, "ms")
    yield Row(f"{number} {noun}: inter-token time", itl_ms, "ms")
    yield Row(f"{number} {noun}: output tokens a second", rate)


def _label(row: Row) -> str:
    return f"{row.label}, {row.unit}" if row.unit else row.label


def _shown(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{1e3 * value:,.1f} ms"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.1f} MiB"
