"""The configuration of a server. `cli/settings.py` fills it from flags and environment."""

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from quire.engine.config import EngineConfig, LogFormat, LogLevel, SupervisionConfig
from quire.engines.ray.config import ReplicaRouting

BUNDLED = "bundled"
"""MODEL for the model that ships with Quire. A folder of that name is written `./bundled`."""
BUNDLED_MODEL_NAME = "quire-bundled"
"""The public name of the model that ships with Quire."""

AFTER_SHUTDOWN_S = 30.0

MAX_NAME_CHARS = 1024
"""Longer names of models match no alias."""

AUTO, NO_PARSER = "auto", "none"
"""A parser has a name, or is the one whose marks the chat template has, or is none."""


class InvalidOption(Exception):
    """An option cannot be used; the text names it and says why."""


class MetricsCompat(StrEnum):
    """The copies of the `quire:` metrics that are exposed beside them."""

    VLLM = "vllm"
    NONE = "none"


class UnknownFieldPolicy(StrEnum):
    """The treatment of unknown fields in messages, tools and calls: an error, or left out and
    reported."""

    REFUSE = "refuse"
    REPORT = "report"


class GenerationConfig(StrEnum):
    """The source of the sampling defaults: the model's own file, or OpenAI's alone."""

    AUTO = "auto"
    NONE = "none"


class CertReqs(StrEnum):
    """The rules for certificates that clients bring over TLS."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class LoadTime(StrEnum):
    """The time when a model is loaded: with the server, or when a request first names it."""

    AT_START = "at-start"
    ON_FIRST_USE = "on-first-use"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, which is a tenant. Without a name a digest of the key stands for it; `weight` is
    its share under a fair policy. Rates of None are unlimited; latency targets of None are those
    of the priority or the server."""

    key: str = field(repr=False)
    name: str | None = None
    weight: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    target_ttft_ms: int | None = None
    target_itl_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of one connection, whoever it is from. Times are seconds:

    head_timeout_s: for a whole head, from its first byte.
    keep_alive_s: without a request, before the first or after an answer.
    ending_idle_s: the same, once a server drains that refuses nobody. Most clients use a connection
        no more that was idle for five seconds (httpx), and lose no request when it is closed.
    body_window_s: in which `min_body_rate` (bytes a second) must be kept, again and again.
    discard_s: for the rest of a body that was refused.
    write_timeout_s: in which the client must take some of the answer.
    linger_s: for what still comes after an error that ends the connection.
    """

    max_head_bytes: int = 64 * 1024
    max_headers: int = 256
    min_body_rate: int = 1024
    head_timeout_s: float = 30.0
    keep_alive_s: float = 75.0
    ending_idle_s: float = 6.0
    body_window_s: float = 30.0
    discard_s: float = 30.0
    write_timeout_s: float = 60.0
    linger_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ModelAlias:
    """Names of models that clients ask for and that are not served: those which `pattern` matches,
    a shell pattern, are taken for `name`, which is served."""

    pattern: str
    name: str

    def matches(self, asked: str) -> bool:
        return len(asked) <= MAX_NAME_CHARS and fnmatchcase(asked, self.pattern)


@dataclass(frozen=True, slots=True)
class ServedModelConfig:
    """The configuration of one model of a server: its engine, and how its text is read and written.

    served_model_names: the names that clients may ask for; answers and metrics carry the first.
    tool_call_parser, reasoning_parser: the name of a format, or AUTO, or NO_PARSER.
    disable_any_whitespace: JSON that a grammar makes has no white space that a model may choose,
        where a request does not say.
    unload_after_s: seconds without a request after which the model is unloaded; None: never.
    default_temperature: the temperature where neither a request nor the model's own file gives one;
        None: that of OpenAI.
    """

    engine: EngineConfig
    served_model_names: tuple[str, ...]
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    generation_config: GenerationConfig = GenerationConfig.AUTO
    disable_any_whitespace: bool = False
    shared_prefix_file: str | None = None
    load: LoadTime = LoadTime.AT_START
    unload_after_s: float | None = None
    default_temperature: float | None = None

    @property
    def name(self) -> str:
        return self.served_model_names[0]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The configuration of one server, with those of its models.

    model_aliases: names that are taken for one which is served; the first that matches counts.
    api_keys: empty means that everyone may call.
    admin_key: the key that the routes of administration then ask for; None leaves them to all who
        may call.

    ssl_certfile: in PEM; None means that the server speaks plain HTTP.
    is_socket_inherited: the listening socket is not the server's own. Others take connections from
        it too, before and after: this one takes some when its models are loaded, and none from the
        moment when it drains, and refuses no request of those that it has.
    replicas, max_replicas: the engines of each model, on Ray Serve, and as many as there may be
        under load; with both None there is one, in a process of this server's.
    has_page: the page at `/` is served, to whoever asks; what it then calls wants a key, as ever.

    Fields without a repr are secret: they are not logged, and `/v1/server_info` leaves them out.
    """

    models: tuple[ServedModelConfig, ...]
    model_aliases: tuple[ModelAlias, ...] = ()
    api_keys: tuple[ApiKey, ...] = field(default=(), repr=False)
    admin_key: str | None = field(default=None, repr=False)
    tenant_secret: str | None = field(default=None, repr=False)
    timeline_requests: int = 1000
    batch_dir: str | None = None
    batch_quota: int = 4 * 1024 * 1024 * 1024
    max_upload_bytes: int = 200 * 1024 * 1024
    response_store_bytes: int = 64 * 1024 * 1024
    response_store_ttl_s: float = 3600.0
    max_prompt_retention_s: float = 3600.0
    host: str = "127.0.0.1"
    port: int = 8000
    is_socket_inherited: bool = False
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = field(default=None, repr=False)
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: CertReqs = CertReqs.NONE
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    has_page: bool = True
    max_body_bytes: int = 8 * 1024 * 1024
    max_half_read_bytes: int = 64 * 1024 * 1024
    shutdown_timeout_s: float = 30.0
    stuck_after_s: float = 120.0
    max_engine_restarts: int = 20
    engine_standby: bool = True
    replicas: int | None = None
    max_replicas: int | None = None
    replica_routing: ReplicaRouting = ReplicaRouting.PREFIX
    sse_keep_alive_interval_s: float = 15.0
    metrics_compat: MetricsCompat = MetricsCompat.VLLM
    unknown_fields: UnknownFieldPolicy = UnknownFieldPolicy.REPORT
    max_logprobs: int = 20
    trust_request_chat_template: bool = False
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.TEXT
    http: HttpLimits = HttpLimits()

    def served_name(self, asked: str) -> str | None:
        """Return the served name that a client means by the name which it asks for, None where it
        means none."""
        if any(asked in each.served_model_names for each in self.models):
            return asked
        return next((each.name for each in self.model_aliases if each.matches(asked)), None)

    @property
    def scheme(self) -> str:
        return "http" if self.ssl_certfile is None else "https"

    @property
    def has_replicas(self) -> bool:
        """Whether engines are replicas on Ray Serve."""
        return self.replicas is not None or self.max_replicas is not None

    @property
    def supervision(self) -> SupervisionConfig:
        """The configuration of what becomes of a model whose engine ends."""
        return SupervisionConfig(self.max_engine_restarts, self.stuck_after_s, self.engine_standby)

    @property
    def predecessor_s(self) -> float:
        """The seconds in which a server that drains on the same socket, with the same options, has
        ended: so long this one waits for what that one has, such as memory."""
        return self.shutdown_timeout_s + AFTER_SHUTDOWN_S

    @property
    def model(self) -> ServedModelConfig:
        """The model of a request that names none."""
        return self.models[0]
