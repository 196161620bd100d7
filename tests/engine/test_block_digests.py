"""Which engines give a prompt's blocks the same digests."""

from dataclasses import replace

import pytest

from quire.engine.config import TOY_MODEL, EngineConfig
from quire.engine.startup.build import build_engine
from quire.scheduler.request import NewRequest, Sampling, Stopping

CONFIG = EngineConfig(
    model=TOY_MODEL, num_gpu_blocks_override=32, block_size=8, enable_kv_cache_events=True
)


def digests(config: EngineConfig) -> list[bytes]:
    engine, _ = build_engine(config, on_progress=lambda *_: None, clock=lambda: 0.0)
    engine.submit(NewRequest("a", tuple(range(1, 20)), Sampling(), Stopping(max_tokens=1)))
    engine.step()
    (event,) = engine.take_kv_events()
    assert event.token_ids == tuple(range(1, 17))
    return list(event.block_hashes)


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_digests_are_of_one_process_unless_they_are_seeded(algorithm: str) -> None:
    config = replace(CONFIG, prefix_caching_hash_algo=algorithm)
    assert digests(config) != digests(config)
    seeded = replace(config, prefix_caching_seed="0")
    assert digests(seeded) == digests(seeded)
    assert digests(seeded) != digests(replace(config, prefix_caching_seed="1"))


def test_a_reproducible_hash_without_a_seed_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = replace(CONFIG, prefix_caching_hash_algo="sha256_cbor")
    with caplog.at_level("WARNING"):
        digests(replace(config, prefix_caching_seed="0"))
        digests(CONFIG)
        assert caplog.text == ""
        digests(config)
    assert caplog.text.count("--prefix-caching-seed") == 1


def test_an_unknown_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="--prefix-caching-hash-algo is md5"):
        digests(replace(CONFIG, prefix_caching_hash_algo="md5"))
