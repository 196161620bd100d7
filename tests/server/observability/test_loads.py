"""`GET /v1/loads`: what the engine told with its last step."""

from tests.server.scripted_engine import FACTS, NUM_BLOCKS
from tests.server.served import Served


def test_the_load_is_that_of_the_last_step(served: Served) -> None:
    served.complete(prompt="x", max_tokens=2).raise_for_status()
    loads = served.client.get("/v1/loads").json()
    metrics = served.client.get("/metrics").text.splitlines()
    lines = [line for line in metrics if not line.startswith("#")]
    shown = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert loads["max_num_seqs"] == FACTS.max_num_seqs
    assert loads["num_running"] == shown["quire:num_requests_running"]
    assert loads["num_waiting"] == shown["quire:num_requests_waiting"]
    assert loads["predicted_wait_s"] == shown["quire:predicted_wait_seconds"]
    assert loads["kv_cache_usage"] == shown["quire:kv_cache_usage_perc"]
    assert sum(loads["blocks"].values()) == NUM_BLOCKS
