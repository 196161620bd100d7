"""The use of a model by a request, from before its body is tokenised until its answer is sent: so
long the model is not unloaded.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.types import Scope

from quire.server.models.served_model import ServedModel

MODEL_USE = "quire.model_use"
"""The key under which the ASGI scope of a request holds its `ModelUse`."""


class ModelUse:
    """The model that a request uses; None until it is known and loaded."""

    __slots__ = ("model",)

    def __init__(self) -> None:
        self.model: ServedModel | None = None

    async def begin(self, model: ServedModel, num_bytes: int) -> None:
        """Return when the model is loaded; a body of `num_bytes` waits as long. Raises
        RequestError."""
        assert self.model is None
        await model.lifecycle.enter(num_bytes)
        self.model = model

    def end(self) -> None:
        """Let the model be unloaded, as far as this request goes."""
        if self.model is not None:
            self.model.lifecycle.leave()
            self.model = None


@contextmanager
def used_model(scope: Scope) -> Iterator[ModelUse]:
    """Let a request use a model until its answer is sent."""
    use = scope[MODEL_USE] = ModelUse()
    try:
        yield use
    finally:
        use.end()


def model_use_of(request: Request) -> ModelUse:
    """Return the use that a request makes of a model."""
    use = request.scope[MODEL_USE]
    assert isinstance(use, ModelUse)
    return use
