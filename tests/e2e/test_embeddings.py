"""Embeddings of the model in the box, by the `openai` client and the real server."""

from collections.abc import Iterator

import openai
import pytest

from tests.e2e.server_process import MODEL, ServerProcess, server_process


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--dtype", "float32") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_embeddings(client: openai.OpenAI) -> None:
    """The client asks for base64 by itself."""
    texts = ["Who art thou?", "To be, or not to be", "Who art thou?"]
    reply = client.embeddings.create(model=MODEL, input=texts)
    vectors = [each.embedding for each in reply.data]
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-5)
    assert max(abs(a - b) for a, b in zip(*vectors[:2], strict=True)) > 0.01
    short = client.embeddings.create(model=MODEL, input=texts[0], dimensions=16)
    numbers = client.embeddings.create(
        model=MODEL, input=texts[0], dimensions=16, encoding_format="float"
    )
    assert len(short.data[0].embedding) == 16
    assert sum(each * each for each in short.data[0].embedding) == pytest.approx(1, abs=1e-5)
    assert short.data[0].embedding == pytest.approx(numbers.data[0].embedding, abs=1e-5)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 3 * short.usage.prompt_tokens - 3
