"""The document of the API: every route is in it, and its examples are true.

That every answer is described is held by the clients of all tests of the server (`documented.py`).
"""

from collections.abc import Iterator

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.apis.anthropic.errors import MessageError
from quire.server.apis.anthropic.wire import EVENTS
from quire.server.apis.protocol.capabilities import Support, capabilities_of
from quire.server.apis.responses.stream_events import EVENT_TYPES
from quire.server.apis.routing import BareRoute
from quire.server.app.apis import ROUTE_PATHS, ROUTERS, bare_routes
from quire.server.app.middleware import OPEN_PATHS
from quire.server.app.openapi.bodies import BODIES
from quire.server.app.openapi.errors import ANYWHERE, ERROR_DOCS
from quire.server.app.page.files import PAGE_FOLDER
from quire.server.http.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.server.documented import held_to_document, resolve, responses
from tests.server.served import MODEL, Served

OPENAI_ERROR = {"message", "type", "param", "code"}
ANTHROPIC_ERROR = {"type", "message", "details"}
DOCUMENT_PATHS = {"/docs", "/openapi.json"}


def request_examples() -> Iterator[tuple[str, str]]:
    for route in bare_routes(*ROUTERS):
        body = (route.openapi_extra or {}).get("requestBody", {"content": {}})
        for name in body["content"].get("application/json", {}).get("examples", ()):
            yield route.path, name


@pytest.fixture(scope="module")
def document(module_server: Served) -> dict[str, object]:
    found: dict[str, object] = module_server.client.get("/openapi.json").json()
    return found


def operations(document: dict[str, object]) -> Iterator[tuple[str, str, dict[str, object]]]:
    paths = document["paths"]
    assert isinstance(paths, dict)
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield method, path, operation


def references(node: object) -> Iterator[dict[str, object]]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node
        for each in node.values():
            yield from references(each)
    elif isinstance(node, list):
        for each in node:
            yield from references(each)


def test_every_route_is_described(served: Served, document: dict[str, object]) -> None:
    app = served.server.config.app
    assert isinstance(app, FastAPI)
    hidden = {app.swagger_ui_oauth2_redirect_url, f"{PAGE_FOLDER}/{{name}}"}
    routes = {
        (method.lower(), route.path_format)
        for route in app.routes
        if isinstance(route, Route) and route.path not in hidden
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert routes == {(method, path) for method, path, _ in operations(document)}
    assert {path for _, path in routes} == ROUTE_PATHS | DOCUMENT_PATHS
    for method, path in routes:
        target = path.replace("{name}", "x")
        with served.client.stream(method, target) as reply:  # some answers have no end
            assert reply.status_code != 405
        reply = served.client.request("put", target)
        assert reply.status_code == 405
        allowed = {each for each, path_of in routes if path_of == path}
        assert set(reply.headers["allow"].lower().split(", ")) - {"head"} == allowed


def test_a_route_that_nobody_described_is_an_error() -> None:
    async def nothing(request: Request) -> Response:
        return Response()

    router = APIRouter(route_class=BareRoute)
    with pytest.raises(TypeError, match="/new is not described"):
        router.get("/new")(nothing)


def test_a_dependency_that_nothing_would_solve_is_an_error() -> None:
    async def nothing(request: Request) -> Response:
        return Response()

    router = APIRouter(route_class=BareRoute, dependencies=[Depends(nothing)])
    with pytest.raises(TypeError, match="no dependencies"):
        router.get("/new", responses={200: {"description": "Nothing."}})(nothing)


def test_every_reference_leads_somewhere(document: dict[str, object]) -> None:
    found = list(references(document))
    assert len(found) > 100
    for node in found:
        resolve(document, node)


@pytest.mark.parametrize(("path", "name"), [*request_examples()])
def test_the_examples_of_bodies_work(
    served: Served, document: dict[str, object], path: str, name: str
) -> None:
    ((_, _, operation),) = [
        each for each in operations(document) if each[1] == path and "requestBody" in each[2]
    ]
    body = operation["requestBody"]
    assert isinstance(body, dict)
    example = body["content"]["application/json"]["examples"][name]["value"]
    assert path == "/reset_prefix_cache" or example["model"] == MODEL
    reply = served.client.post(path, json=example)
    assert reply.status_code == 200, reply.text


def test_every_answer_has_an_example_and_every_error_the_shape_of_its_api(
    document: dict[str, object],
) -> None:
    for _, path, operation in operations(document):
        for status, description in responses(document, operation).items():
            assert "x-request-id" in description.headers
            assert description.media_types
            answer = resolve(document, operation["responses"])[str(status)]
            content = resolve(document, answer)["content"]
            assert isinstance(answer, dict) and isinstance(content, dict)
            assert all(
                "example" in each and ("schema" in each or "itemSchema" in each)
                for each in content.values()
            )
            if "$ref" not in answer:
                continue
            example = content["application/json"]["example"]["error"]
            assert set(example) == (ANTHROPIC_ERROR if MESSAGES in path else OPENAI_ERROR)
    assert all(status == each.example.status for status, each in ERROR_DOCS.items())


def test_what_any_request_may_be_answered_is_everywhere(document: dict[str, object]) -> None:
    for _, path, operation in operations(document):
        statuses = set(responses(document, operation))
        assert statuses >= set(ANYWHERE)
        assert (401 in statuses) == bool(operation["security"]) == (path not in OPEN_PATHS)


def test_fields_without_effect_are_in_the_schemas(document: dict[str, object]) -> None:
    components = document["components"]
    assert isinstance(components, dict)
    fields = components["schemas"]["ChatRequest"]["properties"]
    for capability in capabilities_of(CHAT, BODIES[CHAT]).values():
        refused = capability.support is Support.UNSUPPORTED
        assert ("enum" in fields[capability.field]) == refused
    assert fields["best_of"]["enum"] == [None, 1]


def test_schemas_allow_what_the_server_takes(document: dict[str, object]) -> None:
    """A stop string alone, an assistant that said nothing, empty parts of answers sent back."""
    components = document["components"]
    assert isinstance(components, dict)
    schemas = components["schemas"]
    stops = schemas["ChatRequest"]["properties"]["stop"]["anyOf"]
    assert [each["type"] for each in stops] == ["string", "array", "null"]
    message = schemas["Message"]["properties"]
    assert {"string", "array", "null"} == {each["type"] for each in message["content"]["anyOf"]}
    assert message["reasoning_details"]["type"] == ["array", "null"]


def test_the_events_of_streams_are_described(document: dict[str, object]) -> None:
    kinds: dict[str, set[str]] = {}
    for _, path, operation in operations(document):
        responses_of = operation["responses"]
        assert isinstance(responses_of, dict)
        content = responses_of["200"]["content"]
        if "text/event-stream" in content:
            data = content["text/event-stream"]["itemSchema"]["properties"]["data"]
            data = data["anyOf"][1] if "anyOf" in data else data
            references_in = data["contentSchema"]["anyOf"]
            kinds[path] = {str(each["$ref"]).rpartition("/")[2] for each in references_in}
    assert kinds == {
        COMPLETIONS: {"CompletionBody", "ErrorBody"},
        CHAT: {"ChatChunk", "ErrorBody"},
        RESPONSES: {each.__name__ for each in EVENT_TYPES},
        MESSAGES: {each.__name__ for each in (*EVENTS, MessageError)},
        "/v1/kv_events": {"BlockStored", "BlockRemoved", "AllBlocksCleared", "Gap"},
        "/v1/live": {"LiveEngine", "LivePicture", "LiveChanges"},
    }


@pytest.mark.parametrize(
    ("status", "head", "what"),
    [
        (418, {"content-type": "application/json"}, "418 is not described"),
        (200, {"content-type": "text/html"}, "text/html is not described"),
        (200, {"content-type": "application/json", "retry-after": "2"}, "retry-after"),
    ],
)
def test_an_answer_that_is_not_described_is_found(
    served: Served, status: int, head: dict[str, str], what: str
) -> None:
    request = httpx.Request("GET", f"{served.url}/livez")
    with pytest.raises(AssertionError, match=what):
        held_to_document(served.url)(httpx.Response(status, headers=head, request=request))
