"""The whole engine over two ranks says of models with recurrent layers what `generate` says, in
chunks, after preemptions and over snapshots; and each rank has its part of every state."""

from quire.cache.sizing import MIB
from quire.engine.startup.receipt import receipt_text
from quire.models.loading.outline import read_config
from quire.models.recurrent.config_states import states_from_config
from tests.engine.ranks.forked_engines import NUM_STATES, TwiceAsked, ask_twice
from tests.long import long_but_for
from tests.models.families import SERVED
from tests.models.reference import References, fidelity_prompts

RECURRENT = tuple(name for name, each in SERVED.items() if "state" in each.attention)
IN_EVERY_RUN = ("qwen3_5_text", "mamba")
"""Attention beside states, and none at all. `tests/models/parallel` has other families."""


@long_but_for(IN_EVERY_RUN, "family", RECURRENT)
def test_two_ranks_say_what_generate_says(family: str, references: References) -> None:
    has_attention = SERVED[family].attention != "state"
    folder, prompts = references.checkpoint(family), fidelity_prompts()
    found = ask_twice(folder, prompts, has_attention=has_attention)
    texts = references.greedy_texts(family)
    assert found.texts == texts
    assert found.over_snapshots == [[text[:1], text[-1:]] for text in texts]
    assert found.num_hits > 0
    assert not has_attention or found.num_preemptions > 0
    config = read_config(folder).get_text_config()
    state_bytes = sum(each.state.num_bytes for each in states_from_config(config) or ())
    assert_each_has_half(found, state_bytes)


def assert_each_has_half(found: TwiceAsked, state_bytes: int) -> None:
    """`state_bytes` are those of one state of the whole model."""
    facts = found.facts
    assert [2 * each.state_bytes for each in facts.ranks] == [NUM_STATES * state_bytes] * 2
    (line,) = (each for each in facts.receipt if each.kind == "states")
    assert 2 * line.num_bytes == NUM_STATES * state_bytes
    told = f"states {line.num_bytes / MIB:,.1f} MiB"
    assert receipt_text(facts).count(told) == 2
