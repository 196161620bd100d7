"""The APIs of the server: a new one is a folder of `apis` and a line here."""

from quire.server.apis.anthropic.api import ANTHROPIC
from quire.server.apis.api import Api
from quire.server.apis.embeddings.api import EMBEDDINGS_API
from quire.server.apis.openai.api import OPENAI
from quire.server.apis.prefixes.api import PREFIXES_API
from quire.server.apis.responses.api import RESPONSES_API
from quire.server.apis.scoring.api import SCORING

APIS: tuple[Api, ...] = (
    OPENAI,
    RESPONSES_API,
    ANTHROPIC,
    EMBEDDINGS_API,
    SCORING,
    PREFIXES_API,
)
"""Batches are beside them: what runs them is handed to the application."""
