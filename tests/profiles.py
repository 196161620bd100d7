"""Hypothesis profiles, by HYPOTHESIS_PROFILE, and what makes every run draw the same cases.

`default`   30 cases of a property, the same ones in every run: a failure is one of the change.
`long`      5,000, the same ones too.
`search`    1,000 new ones in every run (`make search`); what it finds becomes an @example.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers

DEFAULT_CASES = 30
STATED_CASES = 50
"""Cases of every other property for which a property states its own number in `cases`."""
LONG_RUN_S = "7200"
"""For one test, in the profiles that take longer than pyproject.toml allows."""


def load_profile() -> None:
    """Load the profile that HYPOTHESIS_PROFILE names."""
    name = os.environ.get("HYPOTHESIS_PROFILE", "default")
    settings.register_profile(
        "default",
        max_examples=DEFAULT_CASES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile("long", settings.get_profile("default"), max_examples=5000)
    settings.register_profile(
        "search",
        settings.get_profile("default"),
        max_examples=1000,
        derandomize=False,
        database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
        print_blob=True,
    )
    settings.load_profile(name)
    _draw_no_constants_of_loaded_modules()
    if name != "default":
        os.environ.setdefault("PYTEST_TIMEOUT", LONG_RUN_S)  # read by pytest-timeout


def cases(number: int) -> settings:
    """Settings for a property with `number` cases where every other has STATED_CASES, and in each
    profile as many times more or fewer as every other has."""
    return settings(max_examples=max(1, number * settings().max_examples // STATED_CASES))


def _draw_no_constants_of_loaded_modules() -> None:
    """Keep what Hypothesis draws from depending on which modules of ours are loaded.

    One draw in twenty is of a constant that it finds in the sources of all loaded modules, so that
    other cases would be drawn alone and in company, and after any change of a number anywhere.
    """
    if hasattr(providers, "_get_local_constants"):
        nothing = type(providers.GLOBAL_CONSTANTS)()
        vars(providers)["_get_local_constants"] = lambda: nothing
