"""Plans of models as their makers published them: no weights are there, and no GPU."""

import dataclasses
from pathlib import Path

import pytest

from quire.cache.sizing import TooLittleMemory
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.models.config import CheckpointError, CUDAGraphMode, KVCacheDtype, Quantization
from quire.models.graphs.sizes import PIECE_BYTES
from quire.workbench.planning.plan import PlanRequest, RequestLengths, ServingPlan, build_plan
from quire.workbench.planning.report import lines_of
from quire.workbench.simulation.figures import Spread
from tests.workbench.planning.published import LLAMA_3_8B, PUBLISHED, write_config

SHORT = RequestLengths(64, 16)
FIT = ("llama-3-8b", "qwen3-30b-a3b", "gemma-3-27b")


def p50_s(spread: Spread) -> float:
    assert spread.p50_ms is not None
    return spread.p50_ms / 1e3


def plan_of(config: EngineConfig, device: str = "h100") -> ServingPlan:
    return build_plan(PlanRequest(config.model.model, device, lengths=SHORT), config)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServingPlan]:
    """Each of the models on an H100."""
    folders = {name: tmp_path_factory.mktemp(name) for name in PUBLISHED}
    for name, folder in folders.items():
        write_config(folder, PUBLISHED[name].config)
    return {
        name: plan_of(EngineConfig(ModelConfig(str(folder)))) for name, folder in folders.items()
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_are_those_by_hand(name: str, plans: dict[str, ServingPlan]) -> None:
    assert plans[name].weight_bytes == PUBLISHED[name].weight_bytes
    assert plans[name].token_bytes == PUBLISHED[name].token_bytes


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_starts_where_it_fits(name: str, plans: dict[str, ServingPlan]) -> None:
    plan = plans[name]
    assert (plan.facts is not None) == (name in FIT)
    if plan.facts is None:
        assert "the weights take" in plan.why_not
        assert not plan.forecasts and not plan.command and plan.cost is None
        assert any("would NOT start" in line for line in lines_of(plan))
        return
    receipt = {line.kind: line.num_bytes for line in plan.facts.receipt}
    assert receipt["weights"] == plan.weight_bytes
    assert receipt["kv"] == plan.facts.num_blocks * plan.facts.block_size * _block_token(plan)
    used = sum(receipt[kind] for kind in ("weights", "activation", "scratch", "graphs", "kv"))
    assert used + receipt["unused"] + plan.device.reserved_bytes == receipt["device"]
    assert used <= 0.9 * receipt["device"]


def test_steps_in_pieces_have_their_memory(tmp_path: Path) -> None:
    write_config(tmp_path, LLAMA_3_8B)
    graphs, totals = [], []
    for mode in CUDAGraphMode:
        plan = plan_of(EngineConfig(ModelConfig(str(tmp_path), cudagraph_mode=mode)))
        assert plan.facts is not None
        receipt = {line.kind: line.num_bytes for line in plan.facts.receipt}
        graphs.append(receipt["graphs"])
        totals.append(receipt["graphs"] + receipt["kv"])
    none, pieces, decode, both = graphs
    assert none == 0 < decode and pieces + decode == both
    assert pieces >= 20 * 33 * PIECE_BYTES  # of 20 sizes, the pieces around 32 layers' attention
    assert max(totals) - min(totals) <= 16 * plan.token_bytes  # a block of K and V


def _block_token(plan: ServingPlan) -> int:
    """The bytes of a token in one block: of its own group alone."""
    assert plan.facts is not None
    memory = plan.facts.memory
    return plan.token_bytes // (1 if memory.why_kept_whole else len(memory.layer_groups))


@pytest.mark.parametrize("name", FIT)
def test_forecasts_are_sane(name: str, plans: dict[str, ServingPlan]) -> None:
    """More requests never come sooner, and a step reads at least what each token reads."""
    plan = plans[name]
    one, some, many = (each.figures for each in plan.forecasts)
    assert [each.burst.num_requests for each in plan.forecasts] == [1, 32, 128]
    assert p50_s(one.first_token) <= p50_s(some.first_token) <= p50_s(many.first_token)
    assert p50_s(one.inter_token) <= p50_s(some.inter_token)
    assert one.output_tok_s < some.output_tok_s <= many.output_tok_s * 1.001
    assert not any(each.num_refused for each in (one, some, many))
    if name != "qwen3-30b-a3b":
        assert p50_s(one.inter_token) >= 0.9 * plan.weight_bytes / plan.device.bytes_s


def test_a_mixture_reads_the_experts_that_are_met(plans: dict[str, ServingPlan]) -> None:
    """One token meets 8 of 128, so a step reads far less than all weights; 32 meet most of them."""
    plan = plans["qwen3-30b-a3b"]
    whole_s = plan.weight_bytes / plan.device.bytes_s
    one, some, _ = (p50_s(each.figures.inter_token) for each in plan.forecasts)
    assert one < 0.3 * whole_s < 0.8 * whole_s < some


def test_a_length_that_fits_is_told(tmp_path: Path) -> None:
    """An L4 has 24 GB, 16 of which are Llama's weights: with a model length that is told, it
    starts, and with one more token it does not."""
    folder = str(write_config(tmp_path, {**LLAMA_3_8B, "max_position_embeddings": 131072}))
    plan = plan_of(EngineConfig(ModelConfig(folder)), "l4")
    assert plan.facts is None and 2 <= plan.fitting_len < 131072
    assert f"--max-model-len {plan.fitting_len}" in plan.why_not + "\n".join(lines_of(plan))
    for more in (0, 1):
        limits = SchedulingConfig(max_model_len=plan.fitting_len + more)
        again = plan_of(EngineConfig(ModelConfig(folder), scheduling=limits), "l4")
        assert (again.facts is not None) == (more == 0)


def test_smaller_keys_and_values_are_more_tokens(
    tmp_path: Path, plans: dict[str, ServingPlan]
) -> None:
    folder = str(write_config(tmp_path, LLAMA_3_8B))
    memory = MemoryConfig(kv_cache_dtype=KVCacheDtype.FP8_E4M3)
    small = plan_of(EngineConfig(ModelConfig(folder), memory)).facts
    large = plans["llama-3-8b"].facts
    assert small is not None and large is not None
    assert small.memory.kv_token_bytes == 32 * 2 * 8 * (128 + 2)
    assert small.memory.kv_tokens > 1.9 * large.memory.kv_tokens


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        (
            LLAMA_3_8B,
            EngineConfig(ModelConfig("", quantization=Quantization.INT8)),
            "--quantization int8 runs on a CPU only",
        ),
        (
            LLAMA_3_8B,
            EngineConfig(ModelConfig(""), scheduling=SchedulingConfig(max_model_len=8193)),
            "--max-model-len is 8193, but this model is made for at most 8192",
        ),
    ],
    ids=["int8", "length"],
)
def test_what_serve_refuses_is_refused(
    config: dict[str, object], options: EngineConfig, said: str, tmp_path: Path
) -> None:
    folder = str(write_config(tmp_path, config))
    model = dataclasses.replace(options.model, model=folder)
    with pytest.raises((CheckpointError, TooLittleMemory, ValueError), match=said):
        plan_of(dataclasses.replace(options, model=model))
