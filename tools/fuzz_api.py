"""Requests made up from `/openapi.json`, sent to a real server: `python -m tools.fuzz_api` (or
`make fuzz`).

schemathesis sends what the document allows and what it forbids, and holds the answers to it. Fails
where an answer is a 5xx other than a deadline's 504, where its status, headers, media type or body
are not in the document, where something that is not allowed is taken, or where there were fewer
cases than wanted. Arguments are schemathesis', as in `--seed 2` or `--max-examples 1000`.

The server has the bundled model, a key and a short context, and listens on the loopback interface.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.server_process import server_process

CONFIG = Path(__file__).parent / "schemathesis.toml"
KEY = "fuzz-key"
NUM_CASES = 5000
"""At least; schemathesis is told how many each route gets."""
DEFAULTS = ("--max-examples=60", "--seed=1", "--phases=examples,coverage,fuzzing")
LONGEST_S = 1800
CONTEXT = 64
"""Tokens that a request may have: it bounds what a made-up request costs."""


def run(url: str, report: Path, arguments: list[str]) -> int:
    """The exit code of schemathesis. Raises TimeoutExpired if it takes too long."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", f"--config-file={CONFIG}"),
        *("run", f"{url}/openapi.json", f"--header=Authorization: Bearer {KEY}"),
        *("--report=json", f"--report-json-path={report}", "--continue-on-failure"),
        *("--generation-database=none", *DEFAULTS, *arguments),
    ]
    with tempfile.TemporaryDirectory() as folder:  # schemathesis leaves files where it runs
        environment = os.environ | {"no_proxy": "*"}
        return subprocess.run(command, cwd=folder, env=environment, timeout=LONGEST_S).returncode


def main() -> None:
    flags = ("--api-key", KEY, "--max-model-len", str(CONTEXT), "--host", "127.0.0.1")
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(*flags, "--batch-dir", f"{folder}/batches") as server,
    ):
        report = Path(folder) / "report.json"
        code = run(server.url, report, sys.argv[1:])
        ready = server.client.get("/readyz").status_code
        told = json.loads(report.read_text(encoding="utf-8"))
    num_cases = told["test_cases"]["generated"]
    print(f"{num_cases} cases, exit code {code}, afterwards /readyz answers {ready}")
    if code or ready != 200 or num_cases < NUM_CASES or not told["complete"]:
        sys.exit("failed: see above" if code else f"failed: {NUM_CASES} cases were wanted")


if __name__ == "__main__":
    main()
