"""A model whose weights are divided among ranks says what it says whole: in fp32 every greedy token
of `generate`, and but for rounding every logit, the same to the bit on every rank."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quire.models.config import KVOptions, LayerFacts, ModelDtype
from quire.models.loading.outline import OutlineOptions, outline, read_config
from quire.models.loading.preview import look_ahead
from quire.models.target import Target
from tests.long import long_but_for
from tests.models.checkpoints import save_checkpoint
from tests.models.families import DENSE, SERVED, Family
from tests.models.logits_error import assert_same_logits
from tests.models.parallel.jobs import Answer, Question, ask_shard, ask_whole
from tests.models.parallel.rank_processes import RankProcesses, in_threads
from tests.models.reference import References, greedy, ordinary, some_prompts

NUM_NEW = 32
PROMPTS = some_prompts(5, 40)
HALVED = (
    *("llama", "qwen2", "qwen3", "mistral", "gemma2", "mixtral", "stories260K"),
    *("aria_text", "gemma4_text, layers that share K and V", "gpt_neox", "granite_swa"),
    *("llama4_text", "mimo_v2_flash", "qwen2_moe"),
)
"""Those whose heads are divided: the usual ones, and one for each other way of a plan."""
WHOLE_HEADS = ("phi3", "olmo2", "granitemoe")
"""Families whose plan leaves every rank all heads."""
IN_EVERY_RUN = ("llama", "gemma2", "mixtral", "gpt_neox")
"""The families of HALVED in every run: the usual plan, norms behind attention, experts, and Q, K
and V in one weight."""
TIED = [(name, has_kernels) for name in ("llama", "gemma2") for has_kernels in (False, True)]
OUTLINE_OPTIONS = OutlineOptions(
    torch.device("cpu"), ModelDtype.FLOAT32, None, 8, KVOptions(), num_ranks=2
)
FUSED_OVER_SUMS = {"AttentionForward", "GatedForward", "LayerForward", "DecoderForward"}
EIGHT_HEADS = Family(
    "llama", fields={**DENSE, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 103}
)


def assert_is_whole(answers: list[Answer], whole: Answer, folder: Path) -> None:
    """All ranks say the same, and it is what the whole model says."""
    longest = max(map(len, PROMPTS))
    assert all(answer.logits == answers[0].logits for answer in answers)
    assert_same_logits(torch.tensor(answers[0].logits), torch.tensor(whole.logits), folder, longest)
    assert all(answer.texts == whole.texts for answer in answers)


def share_of(layer: LayerFacts, num_ranks: int) -> LayerFacts:
    return replace(layer, num_kv_heads=layer.num_kv_heads // num_ranks)


@long_but_for(IN_EVERY_RUN, "name", HALVED)
def test_two_ranks_say_what_one_says_with_half_the_heads(
    name: str, two_ranks: RankProcesses, references: References
) -> None:
    question = Question(references.checkpoint(name), PROMPTS, NUM_NEW)
    answers, whole = two_ranks.run(ask_shard, question), ask_whole(question)
    assert_is_whole(answers, whole, question.folder)
    for answer in answers:
        assert answer.facts.layers == tuple(share_of(layer, 2) for layer in whole.facts.layers)
        assert 2 * answer.block_bytes == whole.block_bytes
        assert answer.weight_bytes < whole.weight_bytes
        assert_is_foretold(answer, question.folder)


def assert_is_foretold(answer: Answer, folder: Path, least: float = 0.99) -> None:
    """What is told before weights are read holds for what is loaded: bytes that are at `least` so
    many times the weights, and no more."""
    target = Target(ModelDtype.FLOAT32, torch.device("cpu"), num_ranks=2)
    preview = look_ahead(folder, target, trust_remote_code=False)
    assert least * answer.weight_bytes <= preview.weight_bytes <= answer.weight_bytes
    for hybrid in (True, False):
        options = KVOptions(hybrid=hybrid)
        assert preview.layout(options) in (None, answer.facts.layout(options))
    outlined = outline(folder, read_config(folder), OUTLINE_OPTIONS)
    assert outlined.loaded.facts.layers == answer.facts.layers
    assert outlined.loaded.facts.vocab_size == answer.facts.vocab_size
    assert 0.98 * answer.weight_bytes <= outlined.weight_bytes <= 1.02 * answer.weight_bytes


@long_but_for([("llama", True)], "name, has_kernels", TIED)
def test_a_tied_weight_is_divided_once(
    name: str, has_kernels: bool, two_ranks: RankProcesses, tmp_path: Path
) -> None:
    """A head that is the embedding too is half as large on each rank, also where it is packed."""
    fields = {**SERVED[name].fields, "tie_word_embeddings": True}
    folder = save_checkpoint(Family(name, fields=fields), tmp_path, torch.bfloat16)
    question = Question(folder, PROMPTS, NUM_NEW, has_kernels=has_kernels)
    answers, whole = two_ranks.run(ask_shard, question), ask_whole(question)
    assert_is_whole(answers, whole, folder)
    assert all(answer.weight_bytes < 0.6 * whole.weight_bytes for answer in answers)


@long_but_for(["llama"], "name", ["llama", "mixtral"])
def test_two_ranks_say_what_generate_says(
    name: str, two_ranks: RankProcesses, references: References
) -> None:
    question = Question(references.checkpoint(name), PROMPTS, NUM_NEW)
    model = ordinary(question.folder)
    expected = [greedy(model, prompt, NUM_NEW) for prompt in PROMPTS]
    assert two_ranks.run(ask_shard, question)[1].texts == expected


@long_but_for(["granitemoe"], "name", WHOLE_HEADS)
def test_two_ranks_say_what_one_says_where_each_has_all_heads(
    name: str, two_ranks: RankProcesses, references: References
) -> None:
    question = Question(references.checkpoint(name), PROMPTS, NUM_NEW)
    answers, whole = two_ranks.run(ask_shard, question), ask_whole(question)
    assert_is_whole(answers, whole, question.folder)
    assert (
        answers[0].facts.layers == whole.facts.layers
        and answers[0].weight_bytes < whole.weight_bytes
    )
    assert_is_foretold(answers[0], question.folder)


@pytest.mark.long  # two ranks stand for them
def test_four_ranks_say_what_one_says(four_ranks: RankProcesses, tmp_path: Path) -> None:
    question = Question(save_checkpoint(EIGHT_HEADS, tmp_path), PROMPTS, NUM_NEW)
    answers, whole = four_ranks.run(ask_shard, question), ask_whole(question)
    assert_is_whole(answers, whole, question.folder)
    assert [answer.facts.layers[0].num_kv_heads for answer in answers] == [1] * 4
    assert 4 * answers[0].block_bytes == whole.block_bytes


@long_but_for(["llama"], "name", ["llama", "qwen2", "gemma2", "mixtral"])
def test_kernels_pack_a_share_of_16_bit_weights(
    name: str, two_ranks: RankProcesses, tmp_path: Path
) -> None:
    """float32 arithmetic over weights that stay as the checkpoint stores them."""
    folder = save_checkpoint(SERVED[name], tmp_path, torch.bfloat16)
    question = Question(folder, PROMPTS, NUM_NEW, has_kernels=True)
    answers, whole = two_ranks.run(ask_shard, question), ask_whole(question)
    assert_is_whole(answers, whole, folder)
    assert whole.num_packed > 0
    assert all(answer.num_packed == answers[0].num_packed > 0 for answer in answers)


@long_but_for(["llama"], "name", ["llama", "qwen3"])
def test_layers_whose_parts_are_summed_are_not_fused(
    name: str, two_ranks: RankProcesses, tmp_path: Path
) -> None:
    """A fused layer reads the weights of its linear layers, and would leave out the sums."""
    folder = save_checkpoint(SERVED[name], tmp_path, torch.bfloat16)
    question = Question(folder, PROMPTS, NUM_NEW, has_kernels=True)
    assert ask_whole(question).fused & FUSED_OVER_SUMS
    for answer in two_ranks.run(ask_shard, question):
        assert answer.fused == {"NormForward"}


def test_weights_of_a_share_are_quantised(two_ranks: RankProcesses, tmp_path: Path) -> None:
    """The scales of a row are those of its part: so texts may differ from those of one rank."""
    folder = save_checkpoint(SERVED["llama"], tmp_path, torch.bfloat16)
    question = Question(folder, PROMPTS, NUM_NEW, has_kernels=True, dtype="auto", is_int8=True)
    one, other = two_ranks.run(ask_shard, question)
    assert one.logits == other.logits and one.texts == other.texts
    assert one.num_packed == other.num_packed > 0
    exact = torch.tensor(ask_whole(Question(folder, PROMPTS, 1)).logits)
    assert (torch.tensor(one.logits) - exact).abs().max() < exact.std()


def test_bfloat16_logits_are_the_same_on_every_rank(
    two_ranks: RankProcesses, references: References
) -> None:
    question = Question(
        references.checkpoint("llama"), PROMPTS, NUM_NEW, has_kernels=True, dtype="bfloat16"
    )
    one, other = two_ranks.run(ask_shard, question)
    assert one.logits == other.logits and one.texts == other.texts
    assert one.num_packed == other.num_packed


def test_one_rank_is_no_division(references: References) -> None:
    """A group of one loads the model as `load_model` does."""
    question = Question(references.checkpoint("qwen2"), PROMPTS, 1)
    assert in_threads(1, lambda group: ask_shard(group, question)) == [ask_whole(question)]
