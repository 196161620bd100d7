"""The models that `bench.served_snapshots` serves are as it reckons, and its options are taken."""

from pathlib import Path

import pytest
from bench.in_process import build_quietly
from bench.served_snapshots import POLICIES, TINY, num_states, write_model

from quire.cache.states.policy import SnapshotPolicy
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig
from quire.engine.startup.state_plan import snapshot_policy
from quire.models.config import ModelDtype
from quire.server.cli.arguments import build_parser
from quire.server.cli.settings import read_config


@pytest.mark.parametrize(("is_recurrent", "expected"), [(True, 5), (False, 0)])
def test_a_state_has_the_bytes_that_snapshots_are_counted_by(
    tmp_path: Path, is_recurrent: bool, expected: int
) -> None:
    write_model(tmp_path, 256, is_recurrent=is_recurrent)
    model = ModelConfig(str(tmp_path), dtype=ModelDtype.FLOAT32, num_threads=1)
    memory = MemoryConfig(num_gpu_blocks_override=32, num_recurrent_states=expected or None)
    _, facts = build_quietly(EngineConfig(model, memory=memory))
    assert facts.memory is not None
    receipt = {line.kind: line.num_bytes for line in facts.receipt}
    assert facts.num_states == expected
    assert receipt.get("states", 0) == expected * TINY.state_bytes
    num_layers = 1 if is_recurrent else 4
    assert facts.memory.kv_token_bytes == num_layers * TINY.token_bytes


def test_each_policy_is_one_of_the_server() -> None:
    found: dict[str, SnapshotPolicy] = {}
    states: dict[str, int | None] = {}
    for name, options in POLICIES.items():
        argv = ["serve", "model", *num_states(name, 20), *options]
        arguments = vars(build_parser().parse_args(argv))
        del arguments["command"]
        engine = read_config(arguments, {}).model.engine
        found[name] = snapshot_policy(engine)
        states[name] = engine.memory.num_recurrent_states
    assert found["planned"] == found["planned, one state a request"] == SnapshotPolicy()
    assert found["every 1,024 tokens"] == SnapshotPolicy(
        prompt_ends=False, junctions=False, outputs=False, ladder=0, interval=128
    )
    assert found["last state alone"] == SnapshotPolicy(junctions=False, ladder=0)
    assert {*states.values()} == {29, 37} and states["planned, one state a request"] == 29
