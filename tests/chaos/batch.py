"""A batch that runs through a storm: its file is written while the disk is full now and then."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tests.chaos.answers import Answer, Piece, differences
from tests.chaos.mix import COMPLETIONS, Ask
from tests.chaos.subject import Subject

ENDED_WITHIN_S = 120.0
OVER = frozenset({"completed", "failed", "expired", "cancelled"})


class Line(msgspec.Struct):
    """A line of an output file: `custom_id` is the place in the batch."""

    custom_id: str
    response: "Response"


class Response(msgspec.Struct):
    """The answer to a line."""

    status_code: int
    body: Piece


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of requests of which the undisturbed answers are known."""

    id: str
    lines: Sequence[tuple[Ask, Answer]]


def begin(subject: Subject, known: Sequence[tuple[Ask, Answer]]) -> Batch:
    """Begin a batch of all unstreamed completions that are known."""
    lines = [pair for pair in known if pair[0].path == COMPLETIONS and not pair[0].is_stream]
    file = "\n".join(
        json.dumps(
            {
                "custom_id": str(place),
                "method": "POST",
                "url": COMPLETIONS,
                "body": {**ask.body, "model": subject.model},
            }
        )
        for place, (ask, _) in enumerate(lines)
    )
    uploaded = subject.upload("in.jsonl", file).json()
    wanted = {"input_file_id": uploaded["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
    return Batch(subject.post("/v1/batches", wanted).json()["id"], lines)


def wrongs(subject: Subject, batch: Batch) -> list[str]:
    """Wait until it has ended, and say which lines have not one answer, the undisturbed one."""
    path = f"/v1/batches/{batch.id}"
    subject.wait(lambda: subject.get(path).json()["status"] in OVER, ENDED_WITHIN_S)
    told = subject.get(path).json()
    if told["status"] != "completed":
        return [f"the batch is {told['status']}: {told['request_counts']}"]
    text = subject.get(f"/v1/files/{told['output_file_id']}/content").text
    answered = [msgspec.json.decode(line, type=Line) for line in text.splitlines()]
    if sorted(int(line.custom_id) for line in answered) != [*range(len(batch.lines))]:
        return [f"{len(answered)} answers to {len(batch.lines)} lines of the batch"]
    found = []
    for line in answered:
        ask, calm = batch.lines[int(line.custom_id)]
        seen = Answer(line.response.status_code)
        seen.add(line.response.body)
        differ = differences(calm, seen)
        if differ and not subject.judge.are_ties(ask, calm, seen):
            found.append(f"line of the batch, {ask}: {'; '.join(differ)}")
    return found
