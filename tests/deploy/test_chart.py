"""The Helm chart: linted and rendered by Helm, its manifests held to Kubernetes' schemas."""

from typing import Any

import jsonschema
import pytest

from quire.server.cli.options import OPTIONS
from tests.deploy.tools import DEPLOY, python, read_yaml

CHART = DEPLOY / "helm" / "quire"
LINT = """
import json, sys, helm_python
print(json.dumps(helm_python.lint(json.loads(sys.argv[1]), json.loads(sys.argv[2]), strict=True)))
"""
RENDER = """
import json, sys, yaml, helm_python
with helm_python.Chart.load(json.loads(sys.argv[1])) as chart:
    files = chart.render(json.loads(sys.argv[2]), name="demo", namespace="serving")
texts = [text for name, text in files.items() if name.endswith(".yaml")]
print(json.dumps([each for text in texts for each in yaml.safe_load_all(text) if each]))
"""
VALIDATE = """
import json, sys, kubernetes_validate
for manifest in json.loads(sys.argv[1]):
    kubernetes_validate.validate(manifest, "1.33", strict=True)
print("true")
"""
ALL: dict[str, object] = {
    "model": "some/model",
    "args": ["--max-num-seqs", "64"],
    "env": [{"name": "QUIRE_LOG_LEVEL", "value": "debug"}],
    "apiKeySecret": "keys",
    "huggingFaceSecret": "hub",
    "imagePullSecrets": [{"name": "pull"}],
    "cache": {"existingClaim": "models"},
    "podMonitor": {"enabled": True, "labels": {"release": "monitoring"}},
    "keda": {"enabled": True},
    "inferencePool": {"enabled": True},
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
BUILT_IN = {"Deployment", "Service", "PodDisruptionBudget"}
NAMED = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
CUSTOM: dict[str, tuple[str, dict[str, object]]] = {
    "PodMonitor": (
        "monitoring.coreos.com/v1",
        {
            "type": "object",
            "required": ["selector", "podMetricsEndpoints"],
            "additionalProperties": False,
            "properties": {
                "selector": {"type": "object", "required": ["matchLabels"]},
                "podMetricsEndpoints": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["port", "path", "interval"],
                        "additionalProperties": False,
                        "properties": {
                            "port": {"const": "http"},
                            "path": {"const": "/metrics"},
                            "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                        },
                    },
                },
            },
        },
    ),
    "ScaledObject": (
        "keda.sh/v1alpha1",
        {
            "type": "object",
            "required": ["scaleTargetRef", "triggers"],
            "additionalProperties": False,
            "properties": {
                "scaleTargetRef": NAMED,
                "minReplicaCount": {"type": "integer"},
                "maxReplicaCount": {"type": "integer"},
                "cooldownPeriod": {"type": "integer"},
                "triggers": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["type", "metadata"],
                        "additionalProperties": False,
                        "properties": {
                            "type": {"const": "prometheus"},
                            "metadata": {
                                "type": "object",
                                "required": ["serverAddress", "query", "threshold"],
                                "additionalProperties": {"type": "string"},
                            },
                        },
                    },
                },
            },
        },
    ),
    "InferencePool": (
        "inference.networking.k8s.io/v1",
        {
            "type": "object",
            "required": ["selector", "targetPorts", "endpointPickerRef"],
            "additionalProperties": False,
            "properties": {
                "selector": {"type": "object", "required": ["matchLabels"]},
                "targetPorts": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "object", "properties": {"number": {"const": 8000}}},
                },
                "endpointPickerRef": {
                    **NAMED,
                    "required": ["name", "port", "failureMode"],
                },
            },
        },
    ),
}
"""The parts that the chart uses of the custom resources' own schemas."""


def rendered(values: dict[str, object]) -> dict[str, Any]:
    """The manifests by their kinds."""
    return {each["kind"]: each for each in python(RENDER, str(CHART), values)}


@pytest.mark.parametrize("values", [{}, ALL])
def test_helm_finds_nothing_wrong(values: dict[str, object]) -> None:
    report = python(LINT, str(CHART), values)
    assert report["errors"] == []
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


def test_a_wrong_value_is_refused() -> None:
    assert python(LINT, str(CHART), {"replicas": "many"})["errors"]
    assert python(LINT, str(CHART), {"colour": "red"})["errors"]


@pytest.mark.parametrize("values", [{}, ALL])
def test_the_manifests_are_what_kubernetes_takes(values: dict[str, object]) -> None:
    manifests = rendered(values)
    assert set(manifests) == BUILT_IN | (set(CUSTOM) if values else set())
    assert python(VALIDATE, [manifests[kind] for kind in sorted(BUILT_IN)])
    for kind in set(manifests) - BUILT_IN:
        version, schema = CUSTOM[kind]
        assert manifests[kind]["apiVersion"] == version
        jsonschema.validate(manifests[kind]["spec"], schema)


def test_the_schemas_find_a_wrong_manifest() -> None:
    deployment = rendered({})["Deployment"]
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(AssertionError):
        python(VALIDATE, [deployment])


def test_a_pod_is_probed_drained_and_confined() -> None:
    deployment = rendered(ALL)["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in PROBES}
    assert probes == PROBES
    grace_s = pod["terminationGracePeriodSeconds"]
    values = read_yaml(CHART / "values.yaml")
    assert grace_s > values["preStopSeconds"] + values["shutdownTimeoutSeconds"]
    assert container["lifecycle"]["preStop"]["exec"]["command"][0] == "sleep"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert {each["mountPath"] for each in container["volumeMounts"]} >= {"/cache", "/tmp"}
    assert "replicas" not in deployment  # KEDA has them


PROBES = {"startup": "/startupz", "liveness": "/livez", "readiness": "/readyz"}


def test_what_the_chart_sets_are_options() -> None:
    container = rendered(ALL)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    flags = {word.partition("=")[0] for word in container["args"] if word.startswith("--")}
    assert flags <= {f"--{option.flag}" for option in OPTIONS}
    variables = {each["name"] for each in container["env"]} - {"HF_TOKEN"}
    assert variables <= {option.variable for option in OPTIONS}
