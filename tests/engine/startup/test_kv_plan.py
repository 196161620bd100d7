"""Options and available memory become blocks and a token budget, with a reason for both."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.footprint import Footprint
from quire.cache.layout import KeptWhole, build_layout
from quire.cache.sizing import Budget, TooLittleMemory
from quire.cache.spec import FULL, AttentionPattern, AttentionType, KVSpec, TokenKV
from quire.engine.messages import EngineFacts, LayerGroupFacts
from quire.engine.startup.kv_plan import AvailableMemory, KVPlan, Limits, plan_kv
from quire.engine.startup.receipt import memory_facts, padding_warning, receipt_text

TOKEN_KV = TokenKV(num_kv_heads=2, head_size=64, v_head_size=64, element_bytes=2)
PLAIN = build_layout([KVSpec(TOKEN_KV)] * 4)
SLIDING = AttentionPattern(AttentionType.SLIDING, 100)
HYBRID = build_layout([KVSpec(TOKEN_KV, SLIDING)] * 5 + [KVSpec(TOKEN_KV)] * 2)
BLOCK_BYTES = PLAIN.block_bytes(16)
FOOTPRINT = Footprint(16, BLOCK_BYTES, token_bytes=4096, fixed_bytes=1 << 20)
GPU = 1 << 34


def limits_of(
    max_model_len: int = 1024, num_tokens: int | None = None, max_num_seqs: int = 64
) -> Limits:
    return Limits(max_model_len, 8192, max_num_seqs, num_tokens, default_token_budget=512)


def device_of(available: int, *, is_unified: bool = False) -> AvailableMemory:
    return AvailableMemory(available, is_unified=is_unified, keeps_prefixes=True)


def plan_of(
    available: int = GPU,
    limits: Limits | None = None,
    budget: Budget | None = None,
    *,
    is_unified: bool = False,
) -> KVPlan:
    device = device_of(available, is_unified=is_unified)
    return plan_kv(PLAIN, FOOTPRINT, limits or limits_of(), budget or Budget(), device)


budgets = st.one_of(
    st.just(Budget()),
    st.builds(Budget, num_blocks=st.integers(1, 20_000)),
    st.builds(Budget, num_bytes=st.integers(1, 1 << 35)),
    st.builds(Budget, num_tokens=st.integers(1, 1 << 18)),
)
limits = st.builds(
    Limits,
    max_model_len=st.integers(2, 8192),
    model_max_len=st.just(8192),
    max_num_seqs=st.integers(1, 64),
    num_tokens=st.none() | st.integers(64, 4096),
    default_token_budget=st.integers(1, 2048),
)


@given(st.integers(-(1 << 20), 1 << 35), limits, budgets, st.booleans())
def test_whatever_is_planned_fits_and_serves_a_request(
    available: int, limits: Limits, budget: Budget, is_unified: bool
) -> None:
    try:
        plan = plan_of(available, limits, budget, is_unified=is_unified)
    except TooLittleMemory as error:
        assert re.search(r"MiB.*MiB", str(error)) and budget.option in str(error)
        return
    assert plan.num_bytes == FOOTPRINT.num_bytes(plan.capacity.num_blocks, plan.num_tokens)
    assert plan.num_bytes <= available
    assert limits.max_num_seqs <= plan.num_tokens <= limits.max_step_tokens
    assert limits.num_tokens in (None, plan.num_tokens)
    assert plan.capacity.largest_length(limits.max_model_len) == limits.max_model_len


def test_a_discrete_gpu_is_taken_whole() -> None:
    plan = plan_of()
    assert GPU - plan.num_bytes < BLOCK_BYTES
    assert plan.reasons.num_blocks == "all that memory allows"
    assert plan.num_tokens == 512
    found = re.fullmatch(
        r"where a larger step .* memory would allow (\d+)", plan.reasons.num_tokens
    )
    assert found is not None and int(found[1]) > 512


def test_unified_memory_is_left_to_others_where_more_is_of_no_use() -> None:
    plan = plan_of(is_unified=True)
    assert plan.capacity.num_blocks == 2 * 64 * (1024 // 16) + 1
    whole = plan_of().capacity.num_blocks
    assert plan.reasons.num_blocks == f"no more can be of use; memory would allow {whole}"
    tight = plan_of(1 << 26, is_unified=True)
    assert tight.reasons.num_blocks == "all that memory allows"


def test_unified_memory_counts_windows() -> None:
    device = device_of(GPU, is_unified=True)
    footprint = Footprint(16, HYBRID.block_bytes(16), token_bytes=4096)
    plan = plan_kv(HYBRID, footprint, limits_of(), Budget(), device)
    per_request = HYBRID.max_blocks(1024, block_size=16, max_chunk_tokens=512)
    assert plan.capacity.num_blocks == 2 * 64 * per_request + 1


def test_given_tokens_leave_the_rest_to_blocks() -> None:
    plan = plan_of(limits=limits_of(num_tokens=2000))
    assert (plan.num_tokens, plan.reasons.num_tokens) == (2000, "as --max-num-batched-tokens says")
    assert plan.num_bytes + BLOCK_BYTES > GPU


def test_given_blocks_leave_the_rest_to_tokens() -> None:
    budget = Budget(num_blocks=100)
    plan = plan_of(budget=budget)
    assert (plan.capacity.num_blocks, plan.num_tokens) == (100, 512)
    assert plan.reasons.num_blocks == "as --num-gpu-blocks-override says"
    available = FOOTPRINT.num_bytes(100, 200)
    plan = plan_of(available, budget=budget)
    assert (plan.num_tokens, plan.reasons.num_tokens) == (200, "all that memory allows")


def test_every_running_request_gets_its_token() -> None:
    plan = plan_of(limits=limits_of(max_num_seqs=700))
    assert plan.num_tokens == 700
    assert plan.reasons.num_tokens.startswith("one for each of --max-num-seqs; memory would allow")
    with pytest.raises(TooLittleMemory, match="beside a step of 64 tokens need"):
        plan_of(FOOTPRINT.num_bytes(100, 63), budget=Budget(num_blocks=100))


def test_a_small_budget_shares_out_blocks_and_tokens() -> None:
    plan = plan_of(1 << 26, limits_of(max_model_len=256, max_num_seqs=2))
    assert plan.reasons.num_tokens == "shared out with KV memory"
    assert 2 < plan.num_tokens < 512


@pytest.mark.parametrize(
    "limits", [limits_of(num_tokens=512), limits_of()], ids=["tokens given", "tokens free"]
)
def test_more_blocks_than_the_device_has_are_refused(limits: Limits) -> None:
    with pytest.raises(TooLittleMemory, match=r"MiB are available; ask for less by --kv-cache"):
        plan_of(1 << 26, limits, Budget(num_bytes=1 << 30))


def test_a_budget_of_tokens_serves_one_request_of_a_hybrid_model() -> None:
    footprint = Footprint(16, HYBRID.block_bytes(16), token_bytes=4096)
    budget = Budget(num_tokens=4096)
    plan = plan_kv(HYBRID, footprint, limits_of(4096), budget, device_of(GPU))
    assert plan.capacity.num_usable == HYBRID.max_blocks(4096, block_size=16, max_chunk_tokens=512)
    assert plan.reasons.num_blocks == "as --kv-cache-tokens says"


def facts_of(plan: KVPlan) -> EngineFacts:
    return EngineFacts(
        model_type="hybrid",
        dtype="bfloat16",
        device="cpu",
        vocab_size=100,
        max_model_len=plan.limits.max_model_len,
        max_num_seqs=64,
        max_num_batched_tokens=plan.num_tokens,
        block_size=16,
        num_blocks=plan.capacity.num_blocks,
        num_host_blocks=0,
        eos_token_ids=(),
        receipt=(),
        memory=memory_facts(plan.capacity, plan.limits, plan.reasons, kv_dtype="int8"),
        startup_s={},
    )


def test_the_receipt_tells_groups_reach_and_reasons() -> None:
    layout = build_layout([KVSpec(TOKEN_KV, SLIDING)] * 2 + [KVSpec(TOKEN_KV)] * 2)
    footprint = Footprint(16, layout.block_bytes(16), token_bytes=4096)
    plan = plan_kv(layout, footprint, limits_of(), Budget(num_tokens=2048), device_of(GPU))
    facts = facts_of(plan)
    assert facts.memory.layer_groups == (
        LayerGroupFacts("full_attention", None, 2),
        LayerGroupFacts("sliding_window", 100, 2),
    )
    window = -(-(100 - 1 + 512) // 16) + 1
    assert facts.num_blocks == 128 + window + 1
    assert facts.memory.max_model_len_fits == 2048
    assert facts.memory.max_concurrency == (128 + window) / (64 + window)
    text = receipt_text(facts)
    for said in (
        f"{facts.num_blocks} blocks of 16 tokens in int8",
        "2 x full_attention, 2 x sliding_window 100",
        "(as --kv-cache-tokens says)",
        "a step: 512 tokens (where a larger step is no better; memory would allow",
        "reachable context: 2,048 tokens; a request has up to 1,024",
        "concurrency at 1,024 tokens a request: 1.6",
    ):
        assert said in text


WHOLE_FOR = {
    KeptWhole.OPTION: build_layout(
        [KVSpec(TOKEN_KV, SLIDING)] * 2 + [KVSpec(TOKEN_KV)] * 2, hybrid=False
    ),
    KeptWhole.UNEQUAL: build_layout(
        [KVSpec(replace(TOKEN_KV, v_head_size=24), SLIDING)] * 2 + [KVSpec(TOKEN_KV)] * 2
    ),
    KeptWhole.COSTLY: build_layout(
        [KVSpec(replace(TOKEN_KV, num_kv_heads=7), SLIDING)] * 2
        + [KVSpec(replace(TOKEN_KV, num_kv_heads=5))] * 2
    ),
}


@pytest.mark.parametrize("why", WHOLE_FOR)
def test_windows_that_keep_every_token_are_told_with_their_cost(why: KeptWhole) -> None:
    layout = WHOLE_FOR[why]
    sliding, full = layout.tensors[0].token_bytes, layout.tensors[-1].token_bytes
    footprint = Footprint(16, layout.block_bytes(16), token_bytes=4096)
    facts = facts_of(plan_kv(layout, footprint, limits_of(), Budget(), device_of(GPU)))
    memory = facts.memory
    assert memory.layer_groups == (
        LayerGroupFacts("sliding_window", 100, 2, is_kept_whole=True),
        LayerGroupFacts("full_attention", None, 2),
    )
    assert memory.why_kept_whole == why.value
    assert memory.passed_token_bytes == memory.kv_token_bytes == 2 * (sliding + full)
    assert memory.unseen_token_bytes == 2 * sliding
    assert (
        f"kept whole: 2 x sliding_window 100: these layers keep every token, since {why}; of a "
        f"token that their windows have passed all layers hold {2 * (sliding + full):,} bytes, "
        f"where {2 * full:,} would do"
    ) in receipt_text(facts)


def test_windows_in_groups_of_their_own_keep_nothing_that_they_have_passed() -> None:
    layout = build_layout([KVSpec(TOKEN_KV, SLIDING)] * 2 + [KVSpec(TOKEN_KV)] * 2)
    assert layout.passed_token_bytes == 2 * TOKEN_KV.token_bytes
    assert layout.unseen_token_bytes == 0
    assert build_layout([KVSpec(TOKEN_KV, SLIDING)] * 2).passed_token_bytes == 0
    assert build_layout([KVSpec(TOKEN_KV)] * 2, hybrid=False).unseen_token_bytes == 0


def test_layers_are_counted_by_what_they_are_over_all_groups() -> None:
    """Windows beside full layers half as wide, and four layers that share K and V."""
    narrow = replace(TOKEN_KV, num_kv_heads=1)
    own = ([KVSpec(TOKEN_KV, SLIDING)] * 5 + [KVSpec(narrow)]) * 2
    layout = build_layout([*own, *[None] * 4], sources={12: 11, 13: 10, 14: 10, 15: 10})
    footprint = Footprint(16, layout.block_bytes(16), token_bytes=4096)
    facts = facts_of(plan_kv(layout, footprint, limits_of(), Budget(), device_of(GPU)))
    assert facts.memory.why_kept_whole == ""
    assert facts.memory.padding_share == layout.padding_share == 0.0
    assert sum(group.num_sharing for group in facts.memory.layer_groups) == 4
    assert {
        (group.kind, group.reach): group.is_kept_whole for group in facts.memory.layer_groups
    } == {("full_attention", None): False, ("sliding_window", 100): False}
    assert (
        "layers: 2 x full_attention (and 1 that share their K and V), "
        "10 x sliding_window 100 (and 3 that share their K and V)"
    ) in receipt_text(facts)


def test_latent_groups_are_called_so() -> None:
    layout = build_layout([KVSpec(TokenKV(1, 576, 0, 2))] * 2)
    footprint = Footprint(16, layout.block_bytes(16), token_bytes=4096)
    facts = facts_of(plan_kv(layout, footprint, limits_of(), Budget(), device_of(1 << 28)))
    assert facts.memory.layer_groups == (LayerGroupFacts("latent", None, 2),)
    assert facts.memory.kv_token_bytes == 2 * 576 * 2


def test_padding_is_warned_about() -> None:
    padded = build_layout([KVSpec(TOKEN_KV, SLIDING)] * 17 + [KVSpec(TOKEN_KV)] * 16)
    assert padded.num_padding > 0
    num_places = len(padded.groups) * len(padded.tensors)
    warning = padding_warning(padded)
    assert warning == (
        f"{padded.num_padding} of {num_places} places hold no layer, "
        f"{padded.num_padding / num_places:.1%} of KV memory"
    )
    assert padding_warning(PLAIN) is None
    assert FULL in PLAIN.patterns
