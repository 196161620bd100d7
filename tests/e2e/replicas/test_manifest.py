"""The manifest for KubeRay is what Serve reads, and its arguments are options of the server."""

import warnings
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from quire.server.config import InvalidOption

pytest.importorskip("ray", reason="the extra `ray` is not installed: `make ray-check`")
with warnings.catch_warnings(action="ignore"):  # of what Ray itself imports
    from ray.serve import Application
    from ray.serve.schema import ServeDeploySchema

    from quire.server.ray import app

MANIFEST = Path(__file__).parents[3] / "deploy/ray/rayservice.yaml"

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


def test_the_manifest_deploys_the_application() -> None:
    service = yaml.safe_load(MANIFEST.read_text())
    config = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    (application,) = config.applications
    assert application.import_path == "quire.server.ray:app"
    assert [each.name for each in application.deployments] == ["engine"]
    assert isinstance(app(application.args), Application)


@pytest.mark.parametrize("name", ["port", "no-such-option", "batch-dir"])
def test_what_is_no_option_there_is_named(name: str) -> None:
    with pytest.raises(InvalidOption, match=name.replace("-", "_")):
        app({"model": "toy", name: "1"})
