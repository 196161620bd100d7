"""Lines of batches are charged to the rates of their key, and wait for them: none fails for it."""

import time
from dataclasses import replace
from pathlib import Path

from quire.server.config import ApiKey
from tests.server.apis.batches.batch_files import encode, line
from tests.server.apis.batches.test_batches import Client
from tests.server.served import plain_config, serving

PER_MINUTE, BEYOND = 60, 2


def test_lines_beyond_the_rate_wait_for_their_turn(tmp_path: Path) -> None:
    key = ApiKey("key-one", "one", requests_per_minute=PER_MINUTE)
    config = replace(plain_config(), api_keys=(key,), batch_dir=str(tmp_path))
    lines = [line(f"r{index}", prompt="x", max_tokens=1) for index in range(PER_MINUTE + BEYOND)]
    with serving(config) as served:
        client = Client(served, "key-one")
        began_s = time.monotonic()
        batch = client.ended(client.begin(encode(lines)))
        took_s = time.monotonic() - began_s
        limited = served.metric('quire:rate_limited_total{model_name="test-model",reason="req')
    counts = batch["request_counts"]
    assert isinstance(counts, dict)
    assert (counts["completed"], counts["failed"]) == (len(lines), 0)
    assert limited > 0 and took_s > 1
