"""The file of answers: whatever moment a process is killed at, no line is lost or repeated."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.batches.answer_log import AnswerLogError, open_answers
from quire.server.apis.batches.batch_run import answer_line
from quire.server.apis.batches.line_runner import LineAnswer
from quire.server.apis.batches.lines import LinePlace, answered_id
from tests.profiles import cases


def answer(custom_id: str) -> bytes:
    return answer_line(LinePlace(0, 0, custom_id), LineAnswer(200, b'{"a":"\\n"}', "req-1"), b"1")


async def append(path: Path, ids: list[str]) -> None:
    log = open_answers(path)
    await asyncio.gather(*(log.append(each, answer(each)) for each in ids))
    assert log.custom_ids >= set(ids)
    await log.close()


async def missing(path: Path, ids: list[str]) -> list[str]:
    log = open_answers(path)
    await log.close()
    return [each for each in ids if each not in log.custom_ids]


@given(
    st.lists(st.text(min_size=1, max_size=10), unique=True, min_size=1, max_size=10),
    st.lists(st.floats(0, 1), max_size=4),
)
@cases(50)
def test_a_file_cut_anywhere_is_gone_on_with(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], cuts: list[float]
) -> None:
    path = tmp_path_factory.mktemp("batch") / "out.jsonl"
    asyncio.run(append(path, ids))
    for cut in cuts:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * cut)])
        kept = [answered_id(raw) for raw in data[: int(len(data) * cut)].split(b"\n")[:-1]]
        left = asyncio.run(missing(path, ids))
        assert sorted([*left, *filter(None, kept)]) == sorted(ids)
        asyncio.run(append(path, left))
    lines = path.read_bytes().splitlines()
    assert sorted(msgspec.json.decode(each)["custom_id"] for each in lines) == sorted(ids)


@pytest.mark.parametrize("held", [b"my notes", b"{}\n" + answer("a"), answer("a") * 2])
def test_a_file_that_is_not_of_answers_is_left_alone(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(held)
    with pytest.raises(AnswerLogError, match=r"out\.jsonl"):
        open_answers(path)
    assert path.read_bytes() == held


async def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    log = open_answers(path)
    with pytest.raises(AnswerLogError, match="another process"):
        open_answers(path)
    await log.close()
    await open_answers(path).close()


async def test_a_full_disk_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.jsonl"
    await append(path, ["a"])
    log = open_answers(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            await log.append("b", answer("b"))
    assert path.read_bytes() == answer("a") and log.custom_ids == {"a"}
    await log.append("b", answer("b"))
    await log.close()
    assert path.read_bytes() == answer("a") + answer("b")
