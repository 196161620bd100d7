"""Alert rules, by Prometheus' own tool, and the page that says what to do."""

import re

from tests.deploy.tools import DEPLOY, ROOT, read_yaml, run, tool

DEBIAN = "Debian's package `prometheus` has it"
PROMETHEUS = DEPLOY / "prometheus"


def test_rules_fire_when_they_should() -> None:
    promtool = tool("promtool", DEBIAN)
    run(promtool, "check", "config", PROMETHEUS / "prometheus.yaml")
    run(promtool, "check", "rules", PROMETHEUS / "rules.yaml")
    run(promtool, "test", "rules", PROMETHEUS / "rules_test.yaml")


def test_each_alert_is_tested_and_has_a_section_of_the_runbook() -> None:
    (group,) = read_yaml(PROMETHEUS / "rules.yaml")["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    tested = {
        each["alertname"]
        for test in read_yaml(PROMETHEUS / "rules_test.yaml")["tests"]
        for each in test["alert_rule_test"]
        if each.get("exp_alerts")
    }
    assert tested == set(alerts)
    for rule in group["rules"]:
        page, _, section = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.M)
        assert rule["alert"] in headings and section == rule["alert"].lower()
    assert headings == alerts
