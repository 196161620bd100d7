"""A server of two models whose scripted engines say different things."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, TracingConfig
from quire.scheduler.request import NewRequest
from quire.server.config import LoadTime, ServedModelConfig, ServerConfig
from tests.server.scripted_engine import ScriptedEngine
from tests.server.served import BUNDLED, Served, bundled_tokenizer, eventually, serving

ONE, TWO = "one", "two"
SAYS = {ONE: 300, TWO: 301}
"""The token that each model draws again and again."""


def model_config(*names: str, **options: object) -> ServedModelConfig:
    tracing = TracingConfig(enable_kv_cache_events=True)
    memory = MemoryConfig(prefix_caching_seed=names[0])
    engine = EngineConfig(ModelConfig(BUNDLED), memory, tracing=tracing)
    return ServedModelConfig(engine, names, **options)  # type: ignore[arg-type]


def two_models(*, unload_after_s: float | None = None, **server: object) -> ServerConfig:
    """`one` is loaded at the start, `two` on its first use."""
    second = model_config(TWO, "zwei", load=LoadTime.ON_FIRST_USE, unload_after_s=unload_after_s)
    return ServerConfig((model_config(ONE, "uno"), second), port=0, **server)  # type: ignore[arg-type]


def says(token_id: int) -> Callable[[NewRequest], Iterator[int]]:
    return lambda _: cycle((token_id,))


@contextmanager
def serving_two(config: ServerConfig) -> Iterator[Served]:
    with serving(
        config, scripts={name: says(token_id) for name, token_id in SAYS.items()}
    ) as served:
        yield served


def text_of(model: str, num_tokens: int) -> str:
    return bundled_tokenizer().decode((SAYS[model],) * num_tokens, skip_special_tokens=True)


def states(served: Served) -> Mapping[str, str]:
    cards = served.client.get("/v1/models").json()["data"]
    return {card["id"]: card["status"]["value"] for card in cards}


def becomes(served: Served, state: str, model: str = TWO) -> bool:
    return eventually(lambda: states(served)[model] == state)


def newest(served: Served) -> ScriptedEngine:
    """The engine of the second model that is loaded next, or was last."""
    return served.engines[-1]
