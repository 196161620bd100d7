"""Routes of Anthropic's API: messages, and how many tokens one would have."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.apis.anthropic.inputs import count_tokens, parse_message
from quire.server.apis.anthropic.writer import MessageWriter
from quire.server.apis.openai.response import GenerationResponse
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.generation.service import Service
from quire.server.http.endpoints import COUNT_TOKENS, MESSAGES

MAX_SHOWN_CHARS = 200


class MessageRoutes:
    """Handlers of the routes of Anthropic's API."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._intake = RequestIntake(service)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (
            Route(MESSAGES, self.message, methods=["POST"]),
            Route(COUNT_TOKENS, self.count_tokens, methods=["POST"]),
        )

    async def message(self, request: Request) -> Response:
        context, serving = await self._intake.context(request, parse_message, "msg")
        context = replace(context, warnings=context.warnings + _beta_warnings(request))
        generation = GenerationStream(context, self._service, serving)
        return GenerationResponse(generation, MessageWriter(generation), self._service)

    async def count_tokens(self, request: Request) -> Response:
        response = await self._intake.answer(request, count_tokens)
        told = response.headers.get("x-quire-warnings")
        warnings = (*([told] if told else ()), *_beta_warnings(request))
        if warnings:
            response.headers["x-quire-warnings"] = "; ".join(warnings)
        return response


def _beta_warnings(request: Request) -> tuple[str, ...]:
    """Return a warning where the client asks for betas of Anthropic's API: what of them Quire does
    it does without, and it is not known what others would change."""
    betas = ", ".join(request.headers.getlist("anthropic-beta"))[:MAX_SHOWN_CHARS]
    shown = betas.encode("ascii", "replace").decode()
    return (f"accepted without effect: anthropic-beta {shown}",) if betas else ()
