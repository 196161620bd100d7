"""Traces of conversations are as they say, and policies of snapshots are compared on them."""

from pathlib import Path

import msgspec
from bench.scripts import Turn, TurnTrace, resolved
from bench.snapshot_records import SnapshotRecord, SnapshotRow, newest_rows, snapshot_table
from bench.snapshot_traces import OPENING, tenants
from bench.snapshots import found_share, policies
from msgspec.structs import replace

from quire.cache.config import CacheConfig

ROW = SnapshotRow("20 tenants", 1600, 0.5, "a model", 3, 0.8, {"planned": 0.76, "last": 0.4})
RECORD = SnapshotRecord("2026-01-02 03:04 UTC", "abc", "python -m ...", (ROW,))


def test_a_turn_begins_with_all_that_was_said() -> None:
    for keeps_reasoning in (True, False):
        turns = resolved(tenants("x", keeps_reasoning=keeps_reasoning)).turns
        assert turns == resolved(tenants("x", keeps_reasoning=keeps_reasoning)).turns
        mine = [turn for turn in turns if turn.conversation == 0]
        assert len(mine) == 10
        for before, after in zip(mine, mine[1:], strict=False):
            shared = [*before.prompt, *before.output] if keeps_reasoning else before.prompt
            num_shared = len(shared) if keeps_reasoning else len(shared) - OPENING
            assert [*after.prompt[:num_shared]] == [*shared[:num_shared]]
            if not keeps_reasoning:
                assert after.prompt[num_shared] != before.prompt[num_shared]


def test_conversations_of_a_tenant_share_its_system_prompt() -> None:
    firsts: dict[int, Turn] = {}
    for turn in resolved(tenants("x", keeps_reasoning=True)).turns:
        firsts.setdefault(turn.conversation, turn)
    same = [firsts[0].prompt[i] == firsts[1].prompt[i] for i in range(1500)]
    assert all(same) and firsts[0].prompt[0] != firsts[3].prompt[0]


def test_policies_find_no_more_than_attention_alone() -> None:
    turns = [
        Turn([*range(1, 200 + 40 * turn)], [*range(200 + 40 * turn, 210 + 40 * turn)], 0)
        for turn in range(6)
    ]
    trace = TurnTrace("small", turns)
    attention = found_share(trace, CacheConfig(100, 16))
    found = {
        name: found_share(trace, CacheConfig(100, 16, num_states=40, snapshots=policy))
        for name, policy in policies(1).items()
    }
    assert 0 < found["planned"] <= attention
    assert found["every 1,024 tokens"] == 0 < found["last state alone"]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = RECORD.save(tmp_path)
    assert msgspec.json.decode(path.read_bytes(), type=SnapshotRecord) == RECORD


def test_the_newest_row_of_each_trace_is_shown(tmp_path: Path) -> None:
    newer = replace(ROW, attention=0.9)
    other = replace(ROW, trace="another")
    RECORD.save(tmp_path)
    replace(RECORD, date="2026-01-03 03:04 UTC", rows=(other, newer)).save(tmp_path)
    assert newest_rows(tmp_path) == [newer, other]


def test_the_table_shows_shares_of_attention_alone() -> None:
    last = snapshot_table(RECORD.rows).splitlines()[-1]
    cells = [cell.strip() for cell in last.split("|")[1:-1]]
    assert cells == ["20 tenants", "1,600", "50%", "a model", "3", "80.0%", "0.950", "0.500"]
