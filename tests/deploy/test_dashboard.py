"""Prometheus scrapes a real run, and answers every query of the dashboard and of the rules."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from tests.deploy.tools import DEPLOY, python, read_yaml, tool
from tests.e2e.server_process import MODEL, eventually, server_process

DASHBOARD = DEPLOY / "grafana" / "dashboards" / "quire.json"
VARIABLES = {"$model": ".*", "$instance": ".*", "$__rate_interval": "10s"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def prometheus_process(folder: Path, target: str) -> Iterator[str]:
    """Prometheus with the configuration of `deploy/`, scraping `target` each second."""
    program = tool("prometheus", "Debian's package `prometheus` has it")
    config = read_yaml(DEPLOY / "prometheus" / "prometheus.yaml")
    config["global"]["scrape_interval"] = "1s"
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    config["rule_files"] = [str(DEPLOY / "prometheus" / each) for each in config["rule_files"]]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    words = [
        *(program, f"--config.file={folder / 'prometheus.yaml'}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"),
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


class Queries:
    """Queries of a Prometheus that has scraped a server under some load."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def rows(self, query: str) -> list[Any]:
        """The rows of the answer. Raises AssertionError where there is none."""
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        reply = self._client.get("/api/v1/query", params={"query": query})
        assert reply.status_code == 200, reply.text
        found: list[Any] = reply.json()["data"]["result"]
        return found

    def is_up(self) -> bool:
        try:
            is_ready = self._client.get("/-/ready").status_code == 200
            return is_ready and [row["value"][1] for row in self.rows("up")] == ["1"]
        except httpx.TransportError:
            return False

    def alerts(self) -> list[Any]:
        """The rules that Prometheus has read."""
        groups = self._client.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    folder = tmp_path_factory.mktemp("prometheus")
    tool("prometheus", "Debian's package `prometheus` has it")
    with server_process() as server:
        with (
            prometheus_process(folder, server.url.removeprefix("http://")) as url,
            httpx.Client(base_url=url, timeout=10) as client,
        ):
            found = Queries(client)

            def has_rates() -> bool:
                body = {"model": MODEL, "prompt": "O,", "max_tokens": 2}
                server.client.post("/v1/completions", json=body).raise_for_status()
                return found.is_up() and bool(
                    found.rows("rate(quire:generation_tokens_total[10s]) > 0")
                    and found.rows('rate(http_requests_total{handler="/v1/completions"}[10s]) > 0')
                )

            assert eventually(has_rates, 60), (folder / "log").read_text()
            yield found


LOST = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
register_default_plugins()

def lost(given, kept, path=""):
    if isinstance(given, dict):
        for key, value in given.items():
            whole = f"{path}.{key}"
            yield from lost(value, kept[key], whole) if key in kept else [whole]
    elif isinstance(given, list):
        for index, value in enumerate(given):
            yield from lost(value, kept[index], f"{path}[{index}]")
    elif given != kept:
        yield path

given = json.loads(sys.argv[1])
kept = json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(sys.argv[1]))))
print(json.dumps(sorted(lost(given, kept))))
"""
"""Prints the fields that Grafana's own types of a dashboard and of queries do not have."""


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert python(LOST, dashboard) == []
    dashboard["refrsh"] = "5s"
    dashboard["panels"][0]["targets"][0]["expresion"] = "up"
    assert python(LOST, dashboard) == [".panels[0].targets[0].expresion", ".refrsh"]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_every_panel_shows_something(queries: Queries, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert queries.rows(target["expr"]), target["expr"]


def test_the_variables_of_the_dashboard_have_values(queries: Queries) -> None:
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        metric = variable["query"]["query"].removeprefix("label_values(").rpartition(",")
        (row,) = queries.rows(metric[0])
        assert row["metric"][metric[2].strip(" )")]


def test_rules_are_read_and_none_fires(queries: Queries) -> None:
    rules = queries.alerts()
    (group,) = read_yaml(DEPLOY / "prometheus" / "rules.yaml")["groups"]
    assert [rule["name"] for rule in rules] == [rule["alert"] for rule in group["rules"]]
    assert {rule["state"] for rule in rules} == {"inactive"}
    for rule in group["rules"]:
        metrics = [word for word in rule["expr"].replace("(", " ").split() if ":" in word]
        for word in metrics:
            name = word.partition("{")[0].partition("[")[0].rstrip(")")
            if name.startswith("quire:"):
                assert queries.rows(name), name


def test_panels_do_not_overlap_and_ids_differ() -> None:
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels()
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels()}) == len(panels())
