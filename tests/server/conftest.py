"""One server for the tests of a module; a test that stops the engine's steps lets it step again."""

from collections.abc import Iterator

import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.scripted_engine import repeat_prompt
from tests.server.served import Served, bundled_tokenizer, plain_config, serving


@pytest.fixture(scope="module")
def module_server() -> Iterator[Served]:
    with serving(plain_config()) as served:
        yield served


@pytest.fixture
def served(module_server: Served) -> Served:
    module_server.engine.script = repeat_prompt
    module_server.engine.refuses = None
    module_server.engine.submitted.clear()
    module_server.engine.aborted.clear()
    module_server.engine.turns.clear()
    return module_server


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    return bundled_tokenizer()
