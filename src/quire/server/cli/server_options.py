"""The options of `quire serve` that the server reads itself: connections, keys, text, the log.

They stand behind those of the engine in the table of `options.py`.
"""

from quire.engine.config import LogFormat, LogLevel
from quire.engines.ray.config import ReplicaRouting
from quire.server.cli.option import ConfigSection, Option
from quire.server.cli.option_values import (
    MAX_REPLICAS,
    boolean,
    byte_count,
    byte_count_or_none,
    host_list,
    integer,
    key_list,
    named,
    one_of,
    origin_list,
    seconds,
    seconds_or_none,
    some_seconds,
    text,
)
from quire.server.config import (
    AUTO,
    NO_PARSER,
    CertReqs,
    GenerationConfig,
    MetricsCompat,
    UnknownFieldPolicy,
)
from quire.server.parsers.formats import ReasoningFormatName, ToolFormatName

SERVER, RESOLVED = ConfigSection.SERVER, ConfigSection.RESOLVED
SERVED_MODEL = ConfigSection.SERVED_MODEL

SERVER_OPTIONS: tuple[Option, ...] = (
    Option("host", SERVER, text, "Address to listen on."),
    Option("port", SERVER, integer(0, 65535), "Port to listen on; 0 selects a free one."),
    Option(
        "ssl-certfile",
        SERVER,
        text,
        "Certificate chain of the server in PEM; the server then speaks only HTTPS.",
    ),
    Option(
        "ssl-keyfile",
        SERVER,
        text,
        "Private key of the certificate in PEM.",
        shown="in the same file",
    ),
    Option(
        "ssl-keyfile-password",
        SERVER,
        text,
        "Password of the private key; prefer the variable.",
    ),
    Option(
        "ssl-ca-certs", SERVER, text, "Certificate authorities, in PEM, for client certificates."
    ),
    Option(
        "ssl-cert-reqs",
        SERVER,
        named(one_of(*CertReqs), **{str(i): str(each) for i, each in enumerate(CertReqs)}),
        "Client certificates: `none`, `optional` or `required` (0, 1, 2).",
    ),
    Option(
        "api-key",
        RESOLVED,
        key_list,
        "Key that clients must send; repeat the flag (commas in the variable) for several.",
        shown="open",
        guards=True,
    ),
    Option(
        "api-key-file",
        RESOLVED,
        text,
        "File with a line `KEY [NAME [WEIGHT]] [rpm=N] [tpm=N] [ttft_ms=N] [itl_ms=N]` for each "
        "API key: its name in metrics, its weight under the `fair` policy (default 1), its maximum "
        "requests and tokens per minute, and its latency targets. Lines that begin with `#` are "
        "comments.",
        shown="none",
        guards=True,
    ),
    Option(
        "admin-key",
        SERVER,
        text,
        "Key for `/v1/server_info`, `/v1/kv_events`, `/reset_prefix_cache`, loading and unloading "
        "models and flight records, which also sees and cancels the requests of all keys; prefer "
        "the variable.",
        shown="none: these routes are open",
        guards=True,
    ),
    Option(
        "tenant-secret",
        SERVER,
        text,
        "Secret that, with the API key, salts the cached blocks of a tenant; prefer the variable. "
        "Replicas that share blocks need the same secret.",
        shown="random at each start",
    ),
    Option(
        "shared-prefix-file",
        SERVED_MODEL,
        text,
        'JSON Lines, each `{"text": ...}` or `{"messages": [...]}`: prefixes of prompts whose '
        "blocks all tenants may share.",
    ),
    Option(
        "timeline-requests",
        SERVER,
        integer(0),
        "Number of recent requests with a timeline at `/v1/requests/{id}`; 0 keeps none.",
    ),
    Option(
        "allowed-origins",
        SERVER,
        origin_list,
        "Origins of web pages that may call the API and read the answers (CORS), as "
        "`https://chat.example.com`, or `*`; repeat the flag (commas in the variable) for several.",
        shown="its own pages only",
    ),
    Option(
        "allowed-hosts",
        SERVER,
        host_list,
        "Names, beside those of loopback, that requests may have in `Host`, without ports, or "
        "`*`. Checked by default on a server without API keys that listens on loopback, and "
        "otherwise if given.",
        shown="names of loopback",
    ),
    Option(
        "page",
        SERVER,
        boolean,
        "Serve the web page at `/`: chat, timelines and memory in a browser.",
        field="has_page",
    ),
    Option("max-body-bytes", SERVER, byte_count, "Maximum size of a request body."),
    Option(
        "max-half-read-bytes",
        SERVER,
        byte_count,
        "Maximum size of all incomplete request bodies together; beyond it the oldest is answered "
        "503.",
    ),
    Option(
        "batch-dir",
        SERVER,
        text,
        "Folder for the files of `/v1/files` and `/v1/batches`, which need it; batches continue "
        "after a restart with the same folder.",
    ),
    Option("batch-quota", SERVER, byte_count, "Maximum bytes of all files of an API key."),
    Option("max-upload-bytes", SERVER, byte_count, "Maximum size of an uploaded file."),
    Option(
        "response-store-bytes",
        SERVER,
        byte_count_or_none,
        "Memory for the stored responses of `/v1/responses` of each API key; 0 stores none.",
    ),
    Option(
        "response-store-ttl",
        SERVER,
        some_seconds,
        "Seconds that a response is stored after its last access.",
        field="response_store_ttl_s",
    ),
    Option(
        "max-prompt-retention-s",
        SERVER,
        seconds,
        "Maximum seconds for which a request may keep its prompt in the prefix cache "
        "(`prompt_cache_options`, `prompt_cache_retention`, `cache_control`); longer times are "
        "shortened. 0: none is kept longer than others.",
    ),
    Option(
        "shutdown-timeout",
        SERVER,
        seconds,
        "Seconds for running requests to finish after SIGTERM.",
        field="shutdown_timeout_s",
    ),
    Option(
        "stuck-after",
        SERVER,
        some_seconds,
        "Seconds without a step, while requests run, before `/readyz` turns red and the engine is "
        "restarted.",
        field="stuck_after_s",
    ),
    Option(
        "max-engine-restarts",
        SERVER,
        integer(0),
        "Maximum restarts of an engine within ten minutes; beyond it the model is down.",
    ),
    Option(
        "engine-standby",
        SERVER,
        boolean,
        "Fork engines from a standby process with all modules imported and no model loaded, for "
        "faster restarts; it adds about 60 MB.",
    ),
    Option(
        "replicas",
        SERVER,
        integer(1, MAX_REPLICAS),
        "Number of engines of each model on Ray Serve, which the server starts here unless "
        "`RAY_ADDRESS` names a cluster. Needs the extra `ray` (see [scaling](scaling.md)).",
        shown="one, without Ray",
    ),
    Option(
        "max-replicas",
        SERVER,
        integer(1, MAX_REPLICAS),
        "Maximum replicas for autoscaling from `--replicas` on.",
        shown="as many as `--replicas`",
    ),
    Option(
        "replica-routing",
        SERVER,
        one_of(*ReplicaRouting),
        "Replica of a request: `prefix` the one that has seen most of its prompt, unless that has "
        "many more requests than another; `load` the less loaded of two random ones.",
    ),
    Option(
        "sse-keep-alive-interval",
        SERVER,
        seconds_or_none,
        "Seconds of silence before a stream gets a comment line; 0 sends none.",
        field="sse_keep_alive_interval_s",
    ),
    Option(
        "tool-call-parser",
        SERVED_MODEL,
        one_of(AUTO, NO_PARSER, *ToolFormatName.__members__),
        "Format of tool calls: `auto` the one in the chat template, or `generic` if it has none; "
        "`none` refuses tools; or one of "
        f"{', '.join(f'`{name}`' for name in ToolFormatName.__members__)}.",
    ),
    Option(
        "reasoning-parser",
        SERVED_MODEL,
        one_of(AUTO, NO_PARSER, *ReasoningFormatName.__members__),
        "Format of reasoning: `auto` the one whose tags are in the chat template, `none` leaves "
        "reasoning in the content, or one of "
        f"{', '.join(f'`{name}`' for name in ReasoningFormatName.__members__)}.",
    ),
    Option(
        "trust-request-chat-template",
        SERVER,
        boolean,
        "Render the `chat_template` of requests, in a sandbox in its own process.",
    ),
    Option(
        "unknown-fields",
        SERVER,
        one_of(*UnknownFieldPolicy),
        "Unknown fields in messages, parts, tools and calls: `report` leaves them out and lists "
        "them in the header `x-quire-ignored`, `refuse` answers with status 400. Unknown fields "
        "at the top of a body are always refused.",
    ),
    Option(
        "max-logprobs",
        SERVER,
        integer(0, 20),
        "Maximum number of likeliest tokens for `logprobs`, at each position of prompt and output.",
    ),
    Option(
        "generation-config",
        SERVED_MODEL,
        one_of(*GenerationConfig),
        "Defaults of sampling parameters: `auto` from the model's `generation_config.json`, "
        "`none` OpenAI's defaults.",
    ),
    Option(
        "disable-any-whitespace",
        SERVED_MODEL,
        boolean,
        "Forbid white space chosen by the model in JSON under a schema or of a tool: answers have "
        "none, arguments of tools a space after each comma and colon. Models then leave more "
        "lists empty (see [schemas](schemas.md#white-space)).",
    ),
    Option(
        "metrics-compat",
        SERVER,
        one_of(*MetricsCompat),
        "`vllm` also exposes each metric under its vLLM name; `none` does not.",
    ),
    Option(
        "log-level",
        SERVER,
        one_of(*LogLevel),
        "Minimum level of logged messages.",
    ),
    Option(
        "log-format",
        SERVER,
        one_of(*LogFormat),
        "Log lines for people (`text`), or one JSON object each (`json`).",
    ),
)
