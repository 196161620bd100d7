"""The published GGUF files of SmolLM2 and Gemma 3, served as they are."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from quire.models.loading.checkpoint import ModelSource, locate
from quire.models.loading.gguf.weights import read_weights
from quire.models.weights.lazy_weight import widened
from quire.server.cli import default_model
from tests.e2e.server_process import ServerProcess, server_process
from tests.real import crowd
from tests.real.gguf_folder import read_once
from tests.real.models import real_folder, real_gguf
from tests.real.texts import prompts

pytestmark = pytest.mark.timeout(900)
"""Seconds: the first test of a server waits for minutes where cores are shared with other tests."""
LINES = (Path(__file__).parent / "prompts.txt").read_text(encoding="utf-8").splitlines()
BLANKS = ["    def f(x):", "a  b   c", "\n\n\n  x", "\t\tx", " ", "  \n", "1234", "2026-11-28"]
OTHERS = ["naïve 東京 🎉", "<td>1</td>", "<|im_end|>", "it's I'LL", "", "x" * 200]
FIELDS = ("model_type", "vocab_size", "rope_parameters", "layer_types", "tie_word_embeddings")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`quire serve` without a model, once SmolLM2 was fetched: nothing is fetched again."""
    home = tmp_path_factory.mktemp("home")
    file = home / "quire" / "models" / default_model.FILE
    file.parent.mkdir(parents=True)
    file.symlink_to(real_gguf("smollm2"))
    variables = {"QUIRE_MODEL": "", "HF_HOME": str(home), "PIP_NO_INDEX": "1"}
    with server_process(*crowd.TIGHT, variables=variables) as running:
        yield running


def folder_of(name: str) -> Path:
    """Return the folder that stands for a file."""
    return locate(ModelSource(str(real_gguf(name))), lambda phase, done, total: None)


@cache
@read_once()
def dequantised(name: str) -> PreTrainedModel:
    """Return what transformers makes of a file, in float32."""
    file = real_gguf(name)
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    read = load_gguf_checkpoint(  # type: ignore[no-untyped-call]
        file, return_tensors=True, model_to_load=model, torch_dtype=torch.float32
    )
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.load_state_dict(read["tensors"], strict=False)
    model.tie_weights()
    nn.Module.train(model, mode=False)
    return model


def test_each_token_is_the_likeliest_of_the_dequantised_weights(server: ServerProcess) -> None:
    """Through a crowded server: a text is that of greedy `generate` if each of its tokens is the
    likeliest after those before it."""
    answers = crowd.answers_in_company(server, prompts(8), seed=1)[::2]
    assert_likeliest(dequantised("smollm2"), answers)


@pytest.mark.long
def test_each_token_of_gemma_is_the_likeliest_of_the_dequantised_weights() -> None:
    flags = (*crowd.TIGHT, "--num-gpu-blocks-override", "500", "--dtype", "float32")
    with server_process(str(real_gguf("gemma3")), *flags) as running:
        answers = crowd.answers_in_company(running, prompts(12), seed=1, send=crowd.completion)
    assert_likeliest(dequantised("gemma3"), answers)


def assert_likeliest(reference: PreTrainedModel, answers: Sequence[crowd.Answer]) -> None:
    for each in answers:
        ids = torch.tensor([[*each.prompt_ids, *each.token_ids]])
        with torch.inference_mode():
            logits = reference(ids, logits_to_keep=len(each.token_ids) + 1).logits
        assert tuple(logits[0, :-1].argmax(-1).tolist()) == each.token_ids


def documented_requests() -> list[str]:
    """Return the first request of the README, of the page on schemas and of that on the API."""
    root = Path(__file__).parents[2]
    pages = [root / name for name in ("README.md", "docs/schemas.md", "docs/api.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    return [re.findall(r"^```sh\n(curl [^`]*)```$", text, re.MULTILINE)[0] for text in texts]


def test_the_documented_requests_are_answered(server: ServerProcess) -> None:
    choices = []
    for request in documented_requests():
        command = request.replace("http://127.0.0.1:8000", server.url)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
        choices.append(json.loads(done.stdout)["choices"][0])
    question, schema, tool = choices
    assert question["message"]["content"] == "The capital of France is Paris."
    assert question["finish_reason"] == "stop"
    assert json.loads(schema["message"]["content"]).keys() == {"name", "age"}
    (call,) = tool["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["thing"] == "sword"


def test_the_log_says_how_to_ask_the_newcomers_question(server: ServerProcess) -> None:
    url = f"curl {server.url}/v1/chat/completions "
    assert any(line.strip().startswith(url) for line in server.log().splitlines())
    assert "fetching" not in server.log()


def test_weights_take_no_more_memory_than_the_file(server: ServerProcess) -> None:
    """A matrix of Q4_1 takes five bits a number, and one of Q8_0 eight and a half."""
    num_bytes = server.metric('quire:memory_bytes{kind="weights"}')
    assert 0 < num_bytes < 1.01 * real_gguf("smollm2").stat().st_size


@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3", marks=pytest.mark.long)])
def test_the_configuration_is_the_models_own(name: str) -> None:
    found = AutoConfig.from_pretrained(folder_of(name))
    known = AutoConfig.from_pretrained(real_folder(name))
    for field in FIELDS:
        assert getattr(found, field, None) == getattr(known, field, None), field


@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3", marks=pytest.mark.long)])
def test_the_weights_are_those_that_transformers_reads(name: str) -> None:
    known = dict(dequantised(name).named_parameters())
    found = read_weights(real_gguf(name), torch.float32)
    assert known.keys() == found.keys()
    for key, weight in found.items():
        assert torch.equal(widened(weight), known[key]), key


@pytest.mark.long  # in every run its tokenizer is another file, and made-up ones are read of GGUF
def test_the_tokens_of_gemma_are_its_own() -> None:
    assert_same_tokens(
        Tokenizer.from_file(str(folder_of("gemma3") / "tokenizer.json")),
        Tokenizer.from_file(str(real_folder("tokenizers/gemma3") / "tokenizer.json")),
        [*LINES, *BLANKS, *OTHERS],
    )


def test_the_tokens_of_smollm2_are_its_own() -> None:
    """It splits numbers into digits, which transformers does not read of the file."""
    found = Tokenizer.from_file(str(folder_of("smollm2") / "tokenizer.json"))
    known = json.loads((real_folder("smollm2") / "tokenizer.json").read_text(encoding="utf-8"))
    known["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, known["pre_tokenizer"]],
    }
    assert_same_tokens(found, Tokenizer.from_str(json.dumps(known)), [*LINES, *BLANKS, *OTHERS])


def assert_same_tokens(found: Tokenizer, known: Tokenizer, texts: Sequence[str]) -> None:
    for text in texts:
        expected = known.encode(text).ids
        assert found.encode(text).ids == expected, text
        assert found.decode(expected) == known.decode(expected), text
