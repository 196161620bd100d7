"""Asks a server for pinned prefixes."""

import httpx

from tests.server.served import Served

LONG = "Tell me of the king and of his three daughters, who lived in a house by the sea. "
MESSAGES = [{"role": "system", "content": LONG * 3}]


def pin(served: Served, key: str | None = None, /, **body: object) -> httpx.Response:
    return served.client.post("/v1/prefixes", json=body, headers=headers_of(key))


def headers_of(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


def shown(served: Served, name: str, key: str | None = None) -> dict[str, object]:
    reply = served.client.get(f"/v1/prefixes/{name}", headers=headers_of(key)).raise_for_status()
    told: dict[str, object] = reply.json()
    return told


def listed(served: Served, key: str | None = None, query: str = "") -> list[dict[str, object]]:
    reply = served.client.get(f"/v1/prefixes{query}", headers=headers_of(key)).raise_for_status()
    assert reply.json()["object"] == "list"
    data: list[dict[str, object]] = reply.json()["data"]
    return data
