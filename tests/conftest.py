"""Hypothesis profiles: `default` for every run, `long` by `HYPOTHESIS_PROFILE=long make test`."""

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch loads: see decision 0008

settings.register_profile(
    "default", max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("default"), max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
