"""Clients on loopback trust no authority: to read those of the system takes 25 ms for each client.

What fetches from the network has the system's again.
"""

import os
from pathlib import Path

NAMES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
KEPT = "TEST_{}_OF_THE_SYSTEM"
"""Variables that keep what was set, for the processes of a run."""


def trust_nobody() -> None:
    """Let clients of this process, and of those that it starts, look into a folder without
    certificates."""
    for name in NAMES:
        os.environ.setdefault(KEPT.format(name), os.environ.pop(name, ""))
    os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)


def environment_of_the_system() -> dict[str, str]:
    """Return the variables of this process as they were before `trust_nobody`."""
    found = {name: value for name, value in os.environ.items() if name not in NAMES}
    before = {name: os.environ.get(KEPT.format(name), "") for name in NAMES}
    return found | {name: value for name, value in before.items() if value}
