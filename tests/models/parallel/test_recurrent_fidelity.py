"""Models with recurrent layers that are divided among ranks say what they say whole: in fp32 every
greedy token of `generate`, the same logits to the bit on every rank. Their bytes are foretold."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quire.models.config import ModelDtype
from quire.models.loading.outline import outline, read_config
from quire.models.loading.preview import look_ahead
from quire.models.target import Target
from tests.long import long_but_for
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED
from tests.models.parallel.jobs import Answer, Question, ask_shard, ask_whole, states_of_shard
from tests.models.parallel.rank_processes import RankProcesses
from tests.models.parallel.test_shard_fidelity import OUTLINE_OPTIONS, assert_is_foretold
from tests.models.reference import NUM_NEW, References, fidelity_prompts, some_prompts

RECURRENT = tuple(name for name, each in SERVED.items() if "state" in each.attention)
IN_EVERY_RUN = ("granitemoehybrid, Mamba-2", "kimi_linear")
"""Experts, packed columns and a plan of Quire's own; and latent attention that stays whole. The
modules of all families are in `test_recurrent_sharding.py`, and others in `tests/engine/ranks`."""
BAMBA = SERVED["bamba"]
EXACT = {
    "qwen3_5_text": SERVED["qwen3_5_text"],
    "bamba, one group for all": BAMBA._replace(fields={**BAMBA.fields, "mamba_n_groups": 1}),
}
PROMPTS = some_prompts(4, 30)
WHOLE_ATTENTION = ("kimi_linear", "olmo_hybrid")
"""Families whose plan leaves every rank all attention heads."""


@long_but_for(IN_EVERY_RUN, "name", RECURRENT)
def test_two_ranks_say_what_generate_says(
    name: str, two_ranks: RankProcesses, references: References
) -> None:
    folder, prompts = references.checkpoint(name), fidelity_prompts()
    question = Question(folder, prompts, NUM_NEW)
    answers = two_ranks.run(ask_shard, question)
    texts = references.greedy_texts(name)
    assert all(answer.texts == texts for answer in answers)
    assert answers[0].logits == answers[1].logits
    whole = ask_whole(replace(question, prompts=prompts[:1], num_new=1))
    num_ways = 1 if name in WHOLE_ATTENTION else 2
    for answer in answers:
        assert [layer.index for layer in answer.facts.recurrent] == [
            layer.index for layer in whole.facts.recurrent
        ]
        assert 2 * answer.facts.state_bytes == whole.facts.state_bytes
        assert [num_ways * layer.num_kv_heads for layer in answer.facts.layers] == [
            layer.num_kv_heads for layer in whole.facts.layers
        ]
        assert answer.weight_bytes < 0.75 * whole.weight_bytes
        assert_is_foretold(answer, folder, 0.98)
        assert_states_are_foretold(answer, question)


def assert_states_are_foretold(answer: Answer, question: Question) -> None:
    """The states that are told before weights are read are those that are loaded."""
    target = Target(ModelDtype.FLOAT32, torch.device("cpu"), num_ranks=2)
    preview = look_ahead(question.folder, target, trust_remote_code=False)
    assert preview.state_bytes == answer.facts.state_bytes
    outlined = outline(question.folder, read_config(question.folder), OUTLINE_OPTIONS)
    assert outlined.loaded.facts.recurrent == answer.facts.recurrent


@pytest.mark.parametrize("name", EXACT)
def test_company_and_chunks_change_no_bit_of_the_states(
    name: str, two_ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = save_checkpoint(EXACT[name], tmp_path, torch.bfloat16)
    question = Question(folder, PROMPTS, NUM_NEW, has_kernels=True, dtype="bfloat16")
    first, again = (two_ranks.run(states_of_shard, question, seed) for seed in (1, 2))
    assert first == again
    assert first[0].texts == first[1].texts and first[0].states != first[1].states


@pytest.mark.parametrize("name", ["nemotron_h"])
def test_kernels_pack_a_share_of_16_bit_weights(
    name: str, two_ranks: RankProcesses, references: References
) -> None:
    """bfloat16 arithmetic by the C++ kernels, over rows of each projection's parts."""
    question = Question(
        references.checkpoint(name), fidelity_prompts(), 4, has_kernels=True, dtype="bfloat16"
    )
    one, other = two_ranks.run(ask_shard, question)
    assert one.logits == other.logits and one.texts == other.texts
    assert one.num_packed == other.num_packed > 0
    exact = torch.tensor(ask_whole(replace(question, has_kernels=False, dtype="float32")).logits)
    assert (torch.tensor(one.logits) - exact).abs().max() < exact.std()
