"""Events of a live view: a small model with one request that decodes."""

from collections.abc import Sequence

NO_FIGURES = {"running": 0, "waiting": 0, "unlisted": 0, "preemptions": 0, "seconds": 0.25}
FIGURES: dict[str, object] = {
    **{"running": 1, "waiting": 0, "unlisted": 0, "preemptions": 2, "seconds": 0.25, "steps": 3},
    **{"step_ms": 74.5, "tokens_per_s": 12.0, "hit_rate": 0.5},
    "blocks": {"free": 5, "cached": 1, "active": 1, "pinned": 0, "swapped": 0, "host_cached": 0},
}
STATES = ("null", "free", "cached", "pinned", "held", "host_free", "host_cached", "swapped")


def request(n: int, id: str = "cmpl-a-0") -> dict[str, object]:
    return {"n": n, "id": id, "arrived": 1.0, "prompt": 9, "max_tokens": 16}


def picture(
    runs: Sequence[int] = (0, 1, 0, 1, 1, 16, 2, 1, 2, 3, 5, 1), num_blocks: int = 8
) -> dict[str, object]:
    why = {"event": "first_token", "number": 0, "other": ""}
    return {
        **{"t": 1000.0, "model": "small", "states": STATES, "block_size": 16, "type": "picture"},
        **{"num_blocks": num_blocks, "num_host_blocks": 0, "runs": list(runs)},
        **{"ages": [num_blocks, -1], "sets": [[16, [0]], [17, [0, 1]]], "requests": [request(0)]},
        **{"progress": [[0, "decode", 12, 4, 0, why]], "figures": FIGURES},
    }


def changes(runs: Sequence[int] = (), **more: object) -> dict[str, object]:
    return {
        **{"t": 1001.0, "runs": list(runs), "sets": [], "entered": [], "left": [], "progress": []},
        **{"preempted": [], "figures": FIGURES, "type": "changes", **more},
    }


def engine(state: str) -> dict[str, object]:
    return {"t": 999.0, "model": "small", "state": state, "type": "engine"}
