"""`quire serve` over TLS with OpenAI's client, and starts with files that cannot be used."""

import subprocess
import sys
from pathlib import Path

import openai

from tests.e2e.server_process import MODEL, eventually, server_process
from tests.tls_files import make_tls_files


def test_a_client_is_served_over_tls(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    flags = ("--ssl-certfile", str(files.server_cert), "--ssl-keyfile", str(files.server_key))
    trust = files.client_context()
    with server_process(*flags, trust=trust) as server:
        assert server.url.startswith("https://")
        assert eventually(lambda: f"ready at {server.url} after" in server.log(), 10)
        with openai.OpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            http_client=openai.DefaultHttpxClient(verify=trust),
            max_retries=0,
        ) as client:
            whole = client.completions.create(
                model=MODEL, prompt="Once", max_tokens=8, extra_body={"ignore_eos": True}
            )
            assert whole.usage is not None and whole.usage.completion_tokens == 8
            chunks = client.completions.create(
                model=MODEL, prompt="Once", max_tokens=8, temperature=0, stream=True
            )
            assert len(list(chunks)) > 1
        server.client.close()  # else its connection has seconds to close by itself
        assert server.stop() == 0


def test_files_that_cannot_be_used_end_the_start_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quire.server.cli", "serve", "--port", "0"]
        + ["--ssl-certfile", str(tmp_path / "none.pem")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("quire serve: --ssl-certfile: cannot read ")
