"""Which engines give a prompt's blocks the same digests."""

from dataclasses import replace

import pytest

from quire.cache.block_hash import HashAlgorithm
from quire.engine.config import TOY_MODEL, EngineConfig, MemoryConfig, ModelConfig, TracingConfig
from quire.engine.startup.build import build_engine
from quire.scheduler.request import NewRequest, Sampling, Stopping

CONFIG = EngineConfig(
    ModelConfig(TOY_MODEL),
    memory=MemoryConfig(num_gpu_blocks_override=32, block_size=8),
    tracing=TracingConfig(enable_kv_cache_events=True),
)


def digests(config: EngineConfig) -> list[bytes]:
    engine, _ = build_engine(config, on_progress=lambda *_: None, clock=lambda: 0.0)
    engine.submit(NewRequest("a", tuple(range(1, 20)), Sampling(), Stopping(max_tokens=1)))
    engine.step()
    (event,) = engine.take_kv_events()
    assert event.token_ids == tuple(range(1, 17))
    return list(event.block_hashes)


def hashed_by(algorithm: HashAlgorithm, seed: str | None = None) -> EngineConfig:
    memory = replace(CONFIG.memory, prefix_caching_hash_algo=algorithm, prefix_caching_seed=seed)
    return replace(CONFIG, memory=memory)


@pytest.mark.parametrize("algorithm", list(HashAlgorithm))
def test_digests_are_of_one_process_unless_they_are_seeded(algorithm: HashAlgorithm) -> None:
    plain, seeded = hashed_by(algorithm), hashed_by(algorithm, "0")
    assert digests(plain) != digests(plain)
    assert digests(seeded) == digests(seeded)
    assert digests(seeded) != digests(hashed_by(algorithm, "1"))


def test_a_reproducible_hash_without_a_seed_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("WARNING"):
        digests(hashed_by(HashAlgorithm.SHA256_CBOR, "0"))
        digests(CONFIG)
        assert caplog.text == ""
        digests(hashed_by(HashAlgorithm.SHA256_CBOR))
    assert caplog.text.count("--prefix-caching-seed") == 1
