"""The tables that are made from the code: `python -m tools.generated_docs` (or `make readme`)
writes them anew between their markers.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from bench.ablation import gain_tables
from bench.gpu.listed import STAGES
from bench.json_list_records import list_table, newest_lists
from bench.real_quality import load_all as load_qualities
from bench.real_quality import quality_table
from bench.records import load, real_table
from bench.schema_records import load_newest, schema_tables
from bench.snapshot_records import SERVED_FOLDER, newest_rows, snapshot_table
from bench.stall_records import load_stalls, stall_tables
from tests.models.families import REAL_WEIGHTS, SERVED
from tests.models.refused_families import REFUSED

from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event
from quire.server.app.openapi.bodies import BODIES
from quire.server.cli.config_table import config_table
from quire.server.observability.http_metric_table import HTTP_METRICS
from quire.server.observability.metric import COMMON_LABELS, Metric, MetricKind
from quire.server.observability.metric_table import METRICS
from quire.server.observability.timeline_reasons import MEANINGS
from quire.server.observability.timeline_words import sentence
from tools import metric_schema
from tools.field_tables import field_table, history_field_table

ROOT = Path(__file__).parent.parent


class Table(NamedTuple):
    """Stands in `file` between `<!-- name -->` and `<!-- /name -->`."""

    name: str
    file: str
    render: Callable[[], str]


def metrics_table() -> str:
    rows = ["| Name | Type | Labels | `vllm:` twin | Meaning |", "|---|---|---|---|---|"]
    for metric in METRICS:
        twin = "yes" if metric.twin else "no"
        cells = (f"`quire:{metric.name}`", metric.kind, _labels(metric), twin, metric.help)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def http_metrics_table() -> str:
    rows = ["| Name | Type | Labels | Meaning |", "|---|---|---|---|"]
    for metric in HTTP_METRICS.values():
        cells = (f"`{metric.name}`", metric.kind, _codes(metric.labels), metric.help)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _labels(metric: Metric) -> str:
    named = metric.labels if metric.common == COMMON_LABELS else (*metric.common, *metric.labels)
    only = "only " if metric.common != COMMON_LABELS else ""
    return only + ", ".join(f"`{label}`" for label in named)


def buckets_list() -> str:
    """The metrics under the buckets that they share."""
    shared: dict[tuple[float, ...], list[str]] = {}
    for metric in (*METRICS, *HTTP_METRICS.values()):
        if metric.kind is MetricKind.HISTOGRAM:
            shared.setdefault(metric.buckets, []).append(metric.name)
    return "\n".join(f"- {_codes(names)}: {_bounds(buckets)}" for buckets, names in shared.items())


def _bounds(buckets: Iterable[float]) -> str:
    bounds = ", ".join(f"{bound:g}" for bound in buckets)
    return bounds or "1, 2, 5, 10, 20, 50 and so on, up to the model length"


def timeline_events_table() -> str:
    """Return every event of timelines with its sentence, for the number 64 and a request `X`."""
    rows = [
        "| `event` | `meaning` of `number` | `text`, with number 64 and request X |",
        "|---|---|---|",
    ]
    for reason in Reason:
        meaning = MEANINGS[reason].number
        text = sentence(Event(0.0, reason, 64, "X"))
        rows.append(f"| `{reason}` | {f'`{meaning}`' if meaning else ''} | {text} |")
    return "\n".join(rows)


def fields_table() -> str:
    """Return every request field of each endpoint, and what becomes of it."""
    return field_table(BODIES)


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def served_table() -> str:
    """Return a line for each model type: its attention, its tested variants, and the weights."""
    rows = ["| `model_type` | Attention | Tested variants | Weights |", "|---|---|---|---|"]
    kinds: dict[str, list[str]] = {}
    variants: dict[str, list[str]] = {}
    for name, family in SERVED.items():
        kinds.setdefault(family.model_type, []).append(family.attention)
        variant = name.partition(", ")[2]
        variants.setdefault(family.model_type, []).extend([variant] if variant else [])
    for model_type in sorted(kinds):
        attention = "; ".join(dict.fromkeys(kinds[model_type]))
        weights = REAL_WEIGHTS.get(model_type)
        cells = (
            *(f"`{model_type}`", attention, "; ".join(variants[model_type])),
            f"**real**: {weights}" if weights else "random",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def refused_table() -> str:
    rows = ["| Tested with | The refusal says |", "|---|---|"]
    for name, refused in sorted(REFUSED.items()):
        rows.append(f"| {name} | ... {refused.why} ... |")
    return "\n".join(rows)


def recorded_gains() -> str:
    """Return what each optimisation brings, by the newest records of each kind of machine."""
    return gain_tables(load())


def recorded_schemas() -> str:
    """Return the tables of the newest run of the schemas of SchemaStore."""
    return schema_tables(load_newest())


def recorded_snapshots() -> str:
    """Return what the policies of snapshots find in the cache alone, by the newest records."""
    return snapshot_table(newest_rows())


def recorded_served_snapshots() -> str:
    """Return what the policies of snapshots find through a server, by the newest records."""
    return snapshot_table(newest_rows(SERVED_FOLDER))


def recorded_lists() -> str:
    """Return the table of the newest run of lists under schemas."""
    return list_table(newest_lists())


def recorded_qualities() -> str:
    """Return what numbers of fewer bytes cost in perplexity, by the newest record of each model."""
    return quality_table(load_qualities())


def recorded_on_real_weights() -> str:
    """Return the newest comparisons on real weights."""
    return real_table(load())


def recorded_stalls() -> str:
    """Return the newest figures of outputs beside long prompts."""
    return stall_tables(load_stalls())


def acceptance_table() -> str:
    """Return every check of a GPU, in the order of its worth, with its seconds."""
    rows = [
        "| Stage | Check | Compared with, or measured | s, estimated | s, at most |",
        "|---|---|---|---|---|",
    ]
    for stage, checks in STAGES.items():
        for check in checks:
            seconds = f"{check.takes_s:g} | {check.limit_s:g}"
            rows.append(f"| {stage} | `{check.name}` | {check.about} | {seconds} |")
    return "\n".join(rows)


TABLES = (
    Table("options", "docs/configuration.md", config_table),
    Table("metrics", "docs/metrics.md", metrics_table),
    Table("http-metrics", "docs/metrics.md", http_metrics_table),
    Table("buckets", "docs/metrics.md", buckets_list),
    Table("fields", "docs/api.md", fields_table),
    Table("timeline-events", "docs/api.md", timeline_events_table),
    Table("history-fields", "docs/api.md", history_field_table),
    Table("stalls", "docs/api.md", recorded_stalls),
    Table("served", "docs/models.md", served_table),
    Table("refused", "docs/models.md", refused_table),
    Table("json-lists", "docs/schemas.md", recorded_lists),
    Table("snapshots", "docs/prefix-cache.md", recorded_snapshots),
    Table("served snapshots", "docs/prefix-cache.md", recorded_served_snapshots),
    Table("quality", "docs/models.md", recorded_qualities),
    Table("real-weights", "README.md", recorded_on_real_weights),
    Table("acceptance", "docs/gpu.md", acceptance_table),
    Table("schemas", "docs/schemas.md", recorded_schemas),
    Table("gains", "src/quire/models/native/README.md", recorded_gains),
)


def refreshed(text: str, table: Table) -> str:
    """The text with the table as it is now. Raises ValueError where its markers are not there."""
    opening, closing = f"<!-- {table.name} -->", f"<!-- /{table.name} -->"
    between = re.compile(f"{re.escape(opening)}.*?{re.escape(closing)}", re.DOTALL)
    whole = f"{opening}\n{table.render().strip()}\n{closing}"
    text, num_places = between.subn(lambda _: whole, text)
    if num_places != 1:
        raise ValueError(f"{table.file} has {num_places} places for {table.name}, must be 1")
    return text


def main() -> None:
    for table in TABLES:
        path = ROOT / table.file
        path.write_text(refreshed(path.read_text(encoding="utf-8"), table), encoding="utf-8")
    (ROOT / metric_schema.FILE).write_text(metric_schema.metric_schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
