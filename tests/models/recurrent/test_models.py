"""Models with recurrent layers, from their files on: what is known of their states, what is left
out of the files, and what is refused."""

import dataclasses
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForImageTextToText

from quire.models.batch import Batch
from quire.models.config import FailedCheck, KVOptions, ModelDtype
from quire.models.hf import HFModel
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading import pretrained
from quire.models.loading.checks.structure import check_structure
from quire.models.loading.config_layout import layout_from_config
from quire.models.loading.outline import Outline, OutlineOptions, outline
from quire.models.loading.weight_files import read_headers, weight_bytes
from quire.models.recurrent.config_states import states_from_config
from tests.long import long_but_for
from tests.models.checkpoints import save_checkpoint, tiny_config
from tests.models.driver import generate_greedy, load
from tests.models.families import SERVED
from tests.models.layers.test_linears import load_packed
from tests.models.paging import Paging
from tests.models.reference import BLOCK_SIZE, References, greedy, ordinary, some_prompts

STATEFUL = [name for name, family in SERVED.items() if "state" in family.attention]
IN_EVERY_RUN = ("qwen3_5_text", "lfm2")
EACH_FAMILY = ("qwen3_5_text", "kimi_linear", "bamba", "jamba", "lfm2")
CPU = torch.device("cpu")
NUM_SEQS, MAX_LEN, NUM_NEW = 4, 40, 6
PROMPTS = some_prompts(NUM_SEQS, MAX_LEN - NUM_NEW)


def texts_and_states(model: HFModel, paging: Paging, seed: int) -> tuple[list[list[int]], Tensor]:
    """Return what the model says to PROMPTS, and the last state of each."""
    texts = generate_greedy(model, paging, PROMPTS, num_new=NUM_NEW, seed=seed)
    assert model.states is not None
    return texts, model.states.rows[[last for last, _ in paging.states]].clone()


@long_but_for(IN_EVERY_RUN, "name", STATEFUL)
def test_the_configuration_tells_the_states_and_layers(name: str, references: References) -> None:
    checkpoint = references.checkpoint(name)
    facts = load(checkpoint).facts
    config = pretrained.read_config(checkpoint, trust_remote_code=False).get_text_config()
    assert states_from_config(config) == facts.recurrent
    layout = layout_from_config(config, KVOptions(), facts.dtype_bytes)
    assert layout in (None, facts.layout(KVOptions()))


def test_models_without_recurrent_layers_have_no_states() -> None:
    assert states_from_config(tiny_config(SERVED["llama"])) == ()


def test_states_of_unknown_layers_are_not_known() -> None:
    config = tiny_config(SERVED["qwen3_next"])
    setattr(config, "model_type", "of-a-test")  # noqa: B010
    assert states_from_config(config) is None


def outlined(checkpoint: Path) -> Outline:
    config = pretrained.read_config(checkpoint, trust_remote_code=False)
    return outline(checkpoint, config, OutlineOptions(CPU, ModelDtype.AUTO, None, 16, KVOptions()))


@long_but_for(IN_EVERY_RUN, "name", STATEFUL)
def test_an_outline_has_the_facts_of_the_model(name: str, references: References) -> None:
    checkpoint = references.checkpoint(name)
    facts, found = load(checkpoint).facts, outlined(checkpoint).loaded.facts
    assert (found.recurrent, found.layers) == (facts.recurrent, facts.layers)


@pytest.mark.parametrize("name", IN_EVERY_RUN)
def test_an_outline_counts_the_weights_of_recurrent_modules(
    name: str, references: References
) -> None:
    found = outlined(references.checkpoint(name))
    parameters = found.loaded.module.named_parameters()
    wanted = sum(
        each.numel() for name, each in parameters if each.dim() > 1 and "embed" not in name
    )
    assert found.shape.num_dense_weights + found.shape.num_head_weights == wanted


@long_but_for(EACH_FAMILY, "name", STATEFUL)
def test_company_and_chunks_change_no_bit_of_a_state(
    name: str, tmp_path: Path, kernels: ModelKernels
) -> None:
    checkpoint = save_checkpoint(SERVED[name], tmp_path / "model", torch.bfloat16)
    loaded = load_packed(checkpoint, kernels)
    paging = Paging(NUM_SEQS, MAX_LEN, block_size=BLOCK_SIZE)

    def run(seed: int) -> tuple[list[list[int]], Tensor]:
        model = loaded.attach(paging.num_blocks, BLOCK_SIZE, num_states=paging.num_states)
        return texts_and_states(model, paging, seed)

    (texts, states), (others, other_states) = run(1), run(2)
    assert texts == others and states.any()
    assert torch.equal(states, other_states)


@pytest.fixture(scope="module")
def loaded_lfm2(references: References) -> HFModel:
    return load(references.checkpoint("lfm2")).attach(9, BLOCK_SIZE, num_states=3)


def test_a_step_without_pieces_is_refused(loaded_lfm2: HFModel) -> None:
    batch = Paging(1, 8, block_size=BLOCK_SIZE).batch([(0, 0, [1, 2, 3])])
    with pytest.raises(ValueError, match="has no pieces, and the model has recurrent layers"):
        loaded_lfm2.forward(dataclasses.replace(batch, pieces=None))


def test_a_model_is_not_attached_without_states(references: References) -> None:
    with pytest.raises(ValueError, match="0 states: a model with recurrent layers needs 2"):
        load(references.checkpoint("lfm2")).attach(9, BLOCK_SIZE)


def forget(batch: Batch) -> Batch:
    """Begin each chunk from nothing."""
    assert batch.pieces is not None
    reads = torch.zeros_like(batch.pieces.reads)
    return dataclasses.replace(batch, pieces=dataclasses.replace(batch.pieces, reads=reads))


def exchange(batch: Batch) -> Batch:
    """Let each chunk go on from its neighbour's state."""
    assert batch.pieces is not None
    reads = batch.pieces.reads.flip(0)
    return dataclasses.replace(batch, pieces=dataclasses.replace(batch.pieces, reads=reads))


@pytest.mark.parametrize("fault", [forget, exchange])
@pytest.mark.parametrize("name", [*IN_EVERY_RUN, "mamba", "mamba2"])
def test_checks_at_load_see_wrong_states(
    name: str, fault: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(SERVED[name])
    skeleton = pretrained.build_without_weights(Path("of-a-test"), config)
    ordinary_forward = HFModel.forward
    assert callable(fault)
    monkeypatch.setattr(
        HFModel, "forward", lambda self, batch: ordinary_forward(self, fault(batch))
    )
    with pytest.raises(FailedCheck, match="requests packed into one row change each other"):
        check_structure(config, skeleton)


@pytest.fixture(scope="module")
def with_more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that sees too, and predicts further tokens, in the names of published ones."""
    folder = tmp_path_factory.mktemp("with_more")
    torch.manual_seed(3)
    config = tiny_config(SERVED["qwen3_5, text alone"])
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["mtp.fc.weight"] = torch.randn(48, 96)
    weights["mtp.layers.0.mlp.up_proj.weight"] = torch.randn(64, 48)
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("has_kernels", [False, True])
def test_what_sees_and_predicts_further_is_left_out(
    with_more: Path, has_kernels: bool, kernels: ModelKernels, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="quire"):
        loaded = load_packed(with_more, kernels, "float32") if has_kernels else load(with_more)
    assert "left out: 2 weights of 0.0 MiB named mtp.*" in caplog.text
    assert "weights of 0.2 MiB named model.visual.*" in caplog.text
    paging = Paging(NUM_SEQS, MAX_LEN, block_size=BLOCK_SIZE)
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE, num_states=paging.num_states)
    texts, _ = texts_and_states(model, paging, 1)
    reference = ordinary(with_more)
    assert texts == [greedy(reference, prompt, NUM_NEW) for prompt in PROMPTS]


def test_layers_that_predict_further_are_not_counted(with_more: Path) -> None:
    tensors = read_headers(with_more)
    found = weight_bytes(tensors, dtype_bytes=4, num_layers=4, is_tied=False)
    further = 4 * (48 * 96 + 64 * 48)
    assert found == sum(tensor.num_bytes for tensor in tensors) - further
