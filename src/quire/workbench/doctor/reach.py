"""Looks at what is outside of the process: Hugging Face's hub, and the port to listen on."""

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from quire.workbench.doctor.finding import Finding, fail, ok, warn

REACH_TIMEOUT_S = 3.0
GIB = 2**30


def hub_findings() -> Iterator[Finding]:
    """Yield whether checkpoints can be fetched and kept."""
    from huggingface_hub import constants, get_token

    yield _cache_finding(Path(constants.HF_HUB_CACHE))
    if constants.HF_HUB_OFFLINE:
        yield ok("hub", "offline, as HF_HUB_OFFLINE says: only checkpoints that are here are used")
        return
    yield _reach_finding(constants.ENDPOINT)
    if get_token() is None:
        yield ok("token", "none: gated and private models would need HF_TOKEN or `hf auth login`")
    else:
        yield ok("token", "there is one")


def _cache_finding(folder: Path) -> Finding:
    """Look at the first folder above that exists: the rest is made when it is needed."""
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return fail("cache", f"{folder} cannot be written", "set HF_HOME to a folder of yours")
    num_free = shutil.disk_usage(existing).free
    text = f"{folder} can be written, {num_free / GIB:.1f} GiB are free"
    return ok("cache", text, {"free_bytes": num_free})


def _reach_finding(endpoint: str) -> Finding:
    """Ask the hub's address, for no longer than REACH_TIMEOUT_S, the look-up of its name too."""
    faults: list[str] = []
    asking = threading.Thread(target=_ask, args=(endpoint, faults.append), daemon=True)
    asking.start()
    asking.join(REACH_TIMEOUT_S)
    if asking.is_alive():
        faults.append(f"no answer within {REACH_TIMEOUT_S:g} s")
    if not faults:
        return ok("hub", f"{endpoint} answers")
    return warn(
        "hub",
        f"{endpoint} cannot be reached: {faults[0]}",
        "serve a local folder, set HF_ENDPOINT to a mirror or HTTPS_PROXY to a proxy; "
        "HF_HUB_OFFLINE=1 spares the wait",
    )


def _ask(endpoint: str, on_fault: Callable[[str], object]) -> None:
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=REACH_TIMEOUT_S):
            return
    except HTTPError:
        return  # an answer, whatever it says
    except (URLError, OSError, ValueError) as error:
        on_fault(str(getattr(error, "reason", error)))


def port_finding(host: str, port: int) -> Finding:
    """Return whether a server could listen there."""
    where = f"{host}:{port}"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except OSError as error:
        advice = "end what listens there, or serve with another --port"
        return warn("port", f"{where} cannot be taken: {error.strerror or error}", advice)
    return ok("port", f"{where} is free")
