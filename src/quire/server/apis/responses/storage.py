"""The application's stored responses."""

from quire.server.apis.responses.expiry import ExpiryTimer
from quire.server.apis.responses.store import ResponseStore, ResponseStoreLimits
from quire.server.generation.service import Service


class ResponseStorage:
    """The store of responses, the timer that drops them, and the end of those that run when the
    server begins to end."""

    def __init__(self, service: Service) -> None:
        config = service.config
        self.store = ResponseStore(
            ResponseStoreLimits(config.response_store_bytes, config.response_store_ttl_s),
            service.sources.clock,
            service.metrics.responses,
        )
        self.expiry = ExpiryTimer(self.store)
        service.drains.add_done_callback(lambda _: self.store.stop_runs())
