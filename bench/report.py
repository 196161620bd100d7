"""Print a comparison: a progress line per run, then one Markdown section for eyes and for files."""

from statistics import median

from bench.markdown import table
from bench.results import Comparison, Row, Run, ServerFacts, rows


def number(value: float | None) -> str:
    """Return three figures or so of a measurement; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def progress_line(run: Run, num_rounds: int) -> str:
    """One run, as soon as it is over."""
    load = run.load
    line = (
        f"round {run.round_index + 1}/{num_rounds} {run.workload.name} {run.label}: "
        f"{run.throughput:.1f} {run.workload.unit}, "
        f"TTFT p50 {number(load.first_token.p50_ms)} ms, "
        f"ITL p50 {number(load.inter_token.p50_ms)} ms, {load.wall_s:.1f} s, "
        f"client {load.client_cpu_s / load.wall_s:.2f} cores"
    )
    remarks = run.faults + run.doubts
    if load.first_failure is not None:
        remarks.append(load.first_failure)
    return line + (f"  !! {'; '.join(remarks)}" if remarks else "")


def _ratio(row: Row) -> str:
    if not row.ratios:
        return "none valid"
    text = f"**{median(row.ratios):.2f}** ({min(row.ratios):.2f}-{max(row.ratios):.2f})"
    missing = row.num_rounds - len(row.ratios)
    return text + (f", {missing} of {row.num_rounds} rounds invalid" if missing else "")


def _cells(row: Row) -> list[str]:
    first, second = row.first, row.second
    return [
        row.workload.name,
        row.workload.unit,
        number(first.throughput),
        number(second.throughput),
        _ratio(row),
        f"{number(first.first_token_p50_ms)} / {number(second.first_token_p50_ms)}",
        f"{number(first.inter_token_p50_ms)} / {number(second.inter_token_p50_ms)}",
    ]


def _server_line(server: ServerFacts) -> str:
    options = f", options `{server.options}`" if server.options else ""
    return (
        f"- {server.label}: {server.version}{options}; {server.resident_gib:.1f} GiB resident, "
        f"{server.idle_cores:.3f} cores when idle"
    )


def _decode_floor(comparison: Comparison) -> str:
    num_bytes = comparison.num_weight_bytes
    weights = f"weights of {num_bytes / 1e9:.3f} GB"
    if num_bytes < comparison.machine.l3_mib * 2**20:
        return f"{weights} fit into the last-level cache, so memory sets no floor"
    floor_ms = comparison.ceilings.decode_step_floor_ms(num_bytes)
    return (
        f"{weights} take at least {floor_ms:.1f} ms a decode step, so one stream gets at most "
        f"{1000 / floor_ms:.1f} tok/s from memory"
    )


def _ceilings_line(comparison: Comparison) -> str:
    ceilings = comparison.ceilings
    return (
        f"- Ceilings: read {ceilings.read_gb_s:.1f} GB/s, bf16 matmul "
        f"{ceilings.bf16_gflop_s:.0f} GFLOP/s; {_decode_floor(comparison)}"
    )


def section(comparison: Comparison) -> str:
    """The whole comparison as Markdown."""
    first, second = comparison.servers
    reduced = rows(comparison)
    header = [
        "workload",
        "unit",
        first.label,
        second.label,
        f"ratio {first.label} / {second.label}, median (min-max)",
        "TTFT p50 ms",
        "ITL p50 ms",
    ]
    lines = [
        f"## {comparison.date}, {comparison.commit}: {first.label} against {second.label}, "
        f"{comparison.model}",
        "",
        f"- Command: `{comparison.command}`",
        f"- Machine: {comparison.machine.describe()}",
        _ceilings_line(comparison),
        _server_line(first),
        _server_line(second),
        "",
        table([header, *(_cells(row) for row in reduced)]),
        "",
    ]
    remarks = [f"- {row.workload.name} {remark}" for row in reduced for remark in row.remarks]
    return "\n".join(lines + (["Remarks:", "", *remarks, ""] if remarks else []))
