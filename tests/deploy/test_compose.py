"""`compose.yaml`, by Compose, and the units, by systemd."""

import json
import os
import subprocess
from pathlib import Path

from tests.deploy.tools import DEPLOY, MAKE, read_yaml, run, tool


def test_compose_takes_the_file_and_every_mount_is_there() -> None:
    compose = tool("docker-compose", MAKE)
    whole = json.loads(run(compose, "-f", DEPLOY / "compose.yaml", "config", "--format", "json"))
    assert set(whole["services"]) == {"quire", "prometheus", "grafana"}
    for service in whole["services"].values():
        for volume in service["volumes"]:
            assert volume["type"] == "volume" or Path(volume["source"]).exists()
    quire = whole["services"]["quire"]
    assert (Path(quire["build"]["context"]) / "Dockerfile").exists()
    assert quire["read_only"] and quire["user"] == "10001:0"


def test_grafana_finds_the_dashboard_and_prometheus_the_server() -> None:
    grafana = DEPLOY / "grafana"
    (source,) = read_yaml(grafana / "provisioning/datasources/prometheus.yaml")["datasources"]
    services = read_yaml(DEPLOY / "compose.yaml")["services"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in services
    dashboard = json.loads((grafana / "dashboards" / "quire.json").read_text())
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    (provider,) = read_yaml(grafana / "provisioning/dashboards/quire.yaml")["providers"]
    mounts = [str(each) for each in services["grafana"]["volumes"]]
    assert any(f":{provider['options']['path']}:" in mount for mount in mounts)


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """With the copy of the service that a rolling restart starts beside it."""
    analyze = tool("systemd-analyze", "Debian's package `systemd` has it")
    units = [tmp_path / each for each in ("quire.socket", "quire.service", "quire@next.service")]
    for unit in (units[0], units[1], tmp_path / "quire@.service"):
        text = (DEPLOY / "systemd" / unit.name.replace("@", "")).read_text()
        unit.write_text(text.replace("/opt/quire/bin/quire serve", "/bin/true"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", *map(str, units)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"SYSTEMD_LOG_TARGET": "console", "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    own = [line for line in done.stderr.splitlines() if "quire" in line]
    assert own == [], done.stderr
