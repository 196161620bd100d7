"""The turns that each agent is taken through, and what a model must have said and done.

A model without a plan (MODEL_IS_FREE) is asked the first question alone: what it says is its own.
"""

import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

WITHIN_S = 200
WORD = "quicksilver"
NUM_TOKENS = 20
"""An answer that has so many tokens is in its middle."""
IS_FREE = "MODEL_IS_FREE" in os.environ
Command = Callable[[str, bool], Sequence[str]]
"""The command of a turn: what is said, and whether it goes on with the last conversation."""
EVERYTHING: Mapping[str, str] = dict(os.environ)


def go_through(
    command: Command, asks_for_tool: str, folder: Path, variables: Mapping[str, str] = EVERYTHING
) -> None:
    """Take an agent through a first answer, a tool call with its result, a second turn that goes on
    with this history, and a turn that is cancelled. The agent is run in `folder`, where its tool
    has to copy `word.txt` to `copy.txt`."""
    (folder / "word.txt").write_text(f"{WORD}\n")

    def turn(said: str, goes_on: bool = True) -> str:
        return _run(command(said, goes_on), folder, variables)

    first = turn("Say who you are.", goes_on=False)
    if IS_FREE:
        assert first.strip(), "nothing was said"
        return
    assert "I am who the plan says" in first, first
    said = turn(asks_for_tool)
    assert "The file was copied" in said, said
    assert (folder / "copy.txt").read_text() == f"{WORD}\n", said
    said = turn("Tell what has been done.")
    assert "As was told before" in said, said
    cancel(command("Count without an end.", True), folder, variables)


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return done.stdout


def cancel(command: Sequence[str], folder: Path, variables: Mapping[str, str] = EVERYTHING) -> None:
    """Run a command until the model is in the middle of its answer, and interrupt it as Ctrl-C
    does: all of its processes."""
    enough = _num_generated() + NUM_TOKENS
    # Where this runs in the background of a shell, its processes would ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (folder / "cancelled").open("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        until_s = time.monotonic() + WITHIN_S
        while _num_generated() < enough:
            assert process.poll() is None, (folder / "cancelled").read_text()
            assert time.monotonic() < until_s, "no answer began"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(WITHIN_S)


def _num_generated() -> float:
    """The tokens that the server has generated, as it tells whoever watches it."""
    url = os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/metrics"
    text = urllib.request.urlopen(url, timeout=WITHIN_S).read().decode()
    found = re.findall(r"^quire:generation_tokens_total\S* (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))
