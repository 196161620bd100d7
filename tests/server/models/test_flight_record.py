"""`POST /v1/models/{name}/flight_record`: what is written, and why it is refused."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from quire.engine.config import RecordingConfig
from quire.engine.recording.flight_file import read_file
from quire.engine.recording.ring import RingWriter, create_ring
from quire.engines.process.flight_ring import FlightRing
from quire.server.config import ServerConfig
from tests.engine.recording.test_flight_file import DATA
from tests.server.models.several import TWO, serving_two, two_models
from tests.server.served import MODEL, Served, plain_config, serving, with_model

PATH = f"/v1/models/{MODEL}/flight_record"
WRITTEN = 'quire:flight_records_written_total{engine="0",model_name="test-model",reason="asked"}'
FAILED = 'quire:flight_records_failed_total{engine="0",model_name="test-model",reason="asked"}'


def recording(folder: Path, minutes: float = 10.0) -> ServerConfig:
    engine = plain_config().models[0].engine
    recording = RecordingConfig(minutes, str(folder))
    return with_model(plain_config(), engine=replace(engine, recording=recording))


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[FlightRing]:
    """A ring that holds the segments of `DATA`."""
    ring = FlightRing(create_ring())
    ring.configured(recording(tmp_path / "a").models[0].engine)
    writer = RingWriter(ring.fd)
    for segment in read_file(DATA).segments:
        writer.begin(segment)
    yield ring
    writer.close()
    ring.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(recording(tmp_path / "a")) as served:
        yield served


def refusal(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def test_the_record_of_the_engine_is_written(
    served: Served, ring: FlightRing, tmp_path: Path
) -> None:
    served.engine.ring = ring
    said = served.client.post(PATH).json()
    (path,) = (tmp_path / "a").iterdir()
    file = read_file(path.read_bytes())
    assert file.segments == read_file(DATA).segments
    assert file.head.reason == "it was asked for"
    assert (said["path"], said["bytes"]) == (str(path), path.stat().st_size)
    assert (said["id"], said["steps"]) == (MODEL, 40)
    assert said["ended"] - said["began"] == 7, "the clock of the wall of `DATA` stands still"
    assert served.metric(WRITTEN) == 1


def test_one_is_written_at_a_time(served: Served, ring: FlightRing, tmp_path: Path) -> None:
    served.engine.ring = ring

    async def ask_often() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=served.url, timeout=30) as client:
            return list(await asyncio.gather(*(client.post(PATH) for _ in range(8))))

    replies = asyncio.run(ask_often())
    refused = [refusal(each) for each in replies if each.status_code != 200]
    assert set(refused) <= {(409, "no_flight_record_now")}
    assert len(list((tmp_path / "a").iterdir())) == 8 - len(refused) == served.metric(WRITTEN)


def test_there_is_none_where_nothing_is_recorded(tmp_path: Path) -> None:
    with serving(recording(tmp_path / "a", minutes=0)) as served:
        reply = served.client.post(PATH)
    assert refusal(reply) == (404, "flight_recorder_off")
    assert "--flight-recorder-minutes 0" in reply.json()["error"]["message"]


def test_there_is_none_of_an_empty_or_an_ended_engine(served: Served, ring: FlightRing) -> None:
    served.engine.ring = empty = FlightRing(create_ring())
    assert refusal(served.client.post(PATH)) == (409, "no_flight_record_now")
    empty.close()
    assert refusal(served.client.post(PATH)) == (409, "no_flight_record_now")


def test_there_is_none_of_an_engine_that_is_none_of_the_model(
    served: Served, ring: FlightRing
) -> None:
    served.engine.ring = ring
    assert served.client.post(f"{PATH}?engine=0").status_code == 200
    assert refusal(served.client.post(f"{PATH}?engine=1")) == (404, "engine_not_found")
    for query in ("engine=x", "engine=-1", "engine=1e9", "model=a"):
        assert served.client.post(f"{PATH}?{query}").status_code == 400


def test_there_is_none_of_a_model_that_is_not_loaded() -> None:
    with serving_two(two_models()) as served:
        reply = served.client.post(f"/v1/models/{TWO}/flight_record")
        assert refusal(reply) == (409, "model_not_loaded")
        assert "two is unloaded" in reply.json()["error"]["message"]
        reply = served.client.post("/v1/models/three/flight_record")
        assert refusal(reply) == (404, "model_not_found")


def test_a_folder_that_cannot_be_written_is_told(
    served: Served, ring: FlightRing, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("no folder")
    served.engine.ring = ring
    reply = served.client.post(PATH)
    assert refusal(reply) == (500, "flight_record_not_written")
    assert served.metric(FAILED) == 1
    (tmp_path / "a").unlink()
    assert served.client.post(PATH).status_code == 200
