"""What is no causal language model in plain weights is named in one sentence, at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers.models.auto import modeling_auto

from quire.models.config import CheckpointError, ModelDtype, UnsupportedModel
from quire.models.loading.checkpoint import ModelSource, locate
from quire.models.loading.checkpoint_kind import ENCODERS, TEXT_PARTS
from quire.models.loading.preview import look_ahead
from quire.models.target import Target
from tests.models.driver import ignore_progress, load
from tests.models.loading.unservable import (
    LLAMA,
    UNSERVABLE,
    UNSERVABLE_LATER,
    Unservable,
    write_unservable,
)

REFUSALS = (CheckpointError, UnsupportedModel)


def is_one_sentence(text: str) -> bool:
    return "\n" not in text and len(text.replace("/", " ")) < 700


@pytest.mark.parametrize("name", UNSERVABLE)
def test_what_a_folder_holds_is_said_in_one_line(name: str, tmp_path: Path) -> None:
    case = UNSERVABLE[name]
    folder = write_unservable(case, tmp_path)
    with pytest.raises(REFUSALS) as refusal:
        load(folder)
    assert case.why in str(refusal.value)
    assert is_one_sentence(str(refusal.value))


@pytest.mark.parametrize("name", UNSERVABLE_LATER)
def test_what_only_transformers_can_tell_is_said_in_one_line(name: str, tmp_path: Path) -> None:
    case = UNSERVABLE_LATER[name]
    folder = locate(ModelSource(str(write_unservable(case, tmp_path))), ignore_progress)
    with pytest.raises(REFUSALS) as refusal:
        look_ahead(folder, Target(ModelDtype.AUTO, torch.device("cpu")), trust_remote_code=False)
    assert case.why in str(refusal.value)
    assert is_one_sentence(str(refusal.value))


def test_a_gguf_file_that_is_none_is_told(tmp_path: Path) -> None:
    file = tmp_path / "model-Q4_K_M.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="is no GGUF file that can be served: it ends at"):
        load(file)


def test_an_adapter_that_names_no_base(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="holds a LoRA adapter, not a whole model: merge"):
        load(tmp_path)


@pytest.mark.parametrize(("text", "why"), [("{", "cannot be read as JSON"), ("[]", "JSON object")])
def test_a_configuration_that_is_no_object_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"config\.json .*{why}"):
        load(tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"architectures": None},
        {"architectures": []},
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": ["GPT2DoubleHeadsModel"]},
        {"quantization_config": None, "num_key_value_heads": None},
        {"model_type": "bert", "architectures": ["BertLMHeadModel"], "is_decoder": True},
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}
        | {"vision_config": {"hidden_size": 32}, "text_config": LLAMA},
    ],
)
def test_what_may_be_served_passes(tmp_path: Path, fields: dict[str, object]) -> None:
    write_unservable(Unservable("", {**LLAMA, **fields}), tmp_path)
    assert locate(ModelSource(str(tmp_path)), ignore_progress) == tmp_path


def test_trusted_code_may_call_its_model_what_it_likes(tmp_path: Path) -> None:
    fields = {"architectures": ["ChatModel"], "auto_map": {"AutoModelForCausalLM": "code.Chat"}}
    write_unservable(Unservable("", {**LLAMA, **fields}), tmp_path)
    trusted = ModelSource(str(tmp_path), trust_remote_code=True)
    assert locate(trusted, ignore_progress) == tmp_path
    with pytest.raises(CheckpointError, match="holds ChatModel, a model without the head"):
        locate(ModelSource(str(tmp_path)), ignore_progress)


@pytest.mark.parametrize(
    "model",
    [
        UNSERVABLE["hqq"],
        Unservable(
            "whose bits is 5", {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 5}}
        ),
    ],
)
def test_no_weights_are_fetched_of_what_is_not_served(
    model: Unservable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_unservable(model, tmp_path)
    fetched: list[str] = []

    def download(name: str, *, allow_patterns: list[str], **options: object) -> str:
        fetched.extend(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("quire.models.loading.hub.snapshot_download", download)
    with pytest.raises(CheckpointError, match=model.why):
        locate(ModelSource("some/model"), ignore_progress)
    telling = ["config.json", "adapter_config.json", "modules.json", "hf_quant_config.json"]
    assert fetched == telling


def test_a_repository_of_another_format_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "quire.models.loading.hub.snapshot_download", lambda *a, **options: str(tmp_path)
    )
    with pytest.raises(CheckpointError, match=r"^some/model-GGUF holds no config.json on the hub"):
        locate(ModelSource("some/model-GGUF"), ignore_progress)


def test_the_tables_are_those_of_transformers() -> None:
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    images = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    assert {*causal, *images} >= TEXT_PARTS
    assert set(masked) >= ENCODERS
    for_masks = {name for name, kind in masked.items() if kind.endswith("ForMaskedLM")}
    assert for_masks - ENCODERS == {"modernvbert", "perceiver", "reformer", "ultravbert"}


def test_the_check_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    folder = write_unservable(UNSERVABLE["hqq"], tmp_path)
    program = (
        "import sys\n"
        "from quire.models.loading.checkpoint import ModelSource, check_local\n"
        f"try: check_local(ModelSource({json.dumps(str(folder))}))\n"
        "except Exception as error: print(error)\n"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "hqq" in done.stdout
