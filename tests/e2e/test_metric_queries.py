"""After a run of the real server, what public dashboards, autoscalers and gateways ask for is
there, by name and label. `metric_queries.json` says who asks for what.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.server_process import MODEL, eventually, server_process

QUERIES = Path(__file__).with_name("metric_queries.json")
SOURCES: list[dict[str, Any]] = json.loads(QUERIES.read_text(encoding="utf-8"))["sources"]
Samples = dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def samples() -> Iterator[Samples]:
    """The labels of all samples, by name, after a completion and a stream."""
    with server_process() as server:
        for stream in (False, True):
            body = {"model": MODEL, "prompt": "To be,", "max_tokens": 4, "stream": stream}
            server.client.post("/v1/completions", json=body).raise_for_status()

        def scrape() -> Samples:
            found: Samples = {}
            for family in text_string_to_metric_families(server.client.get("/metrics").text):
                for sample in family.samples:
                    found.setdefault(sample.name, []).append(sample.labels)
            return found

        assert eventually(lambda: "http_requests_total" in scrape(), 10)
        yield scrape()


def resolves(labels: dict[str, str], wanted: list[str]) -> bool:
    """Whether a sample has these labels, some of them with a value."""
    pairs = (each.partition("=") for each in wanted)
    return all(name in labels and value in ("", labels[name]) for name, _, value in pairs)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source["source"])
def test_every_query_resolves(source: dict[str, Any], samples: Samples) -> None:
    missing = {
        name: wanted
        for name, wanted in source["served"].items()
        if not any(resolves(labels, wanted) for labels in samples.get(name, []))
    }
    assert missing == {}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source["source"])
def test_what_is_said_not_to_be_served_is_not(source: dict[str, Any], samples: Samples) -> None:
    families = {name.removesuffix("_bucket").removesuffix("_count") for name in samples}
    assert families & set(source.get("not_served", ())) == set()
