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
from quire.server.config import AUTO, NO_PARSER, CertReqs, GenerationConfig, MetricsCompat
from quire.server.parsers.formats import ReasoningFormatName, ToolFormatName

SERVER, RESOLVED = ConfigSection.SERVER, ConfigSection.RESOLVED
SERVED_MODEL = ConfigSection.SERVED_MODEL

SERVER_OPTIONS: tuple[Option, ...] = (
    Option("host", SERVER, text, "Address to listen on."),
    Option("port", SERVER, integer(0, 65535), "Port to listen on; 0 takes a free one."),
    Option(
        "ssl-certfile",
        SERVER,
        text,
        "Certificate of the server in PEM, with those between it and its authority: the server "
        "then speaks HTTPS alone.",
    ),
    Option("ssl-keyfile", SERVER, text, "Its private key in PEM.", shown="in the same file"),
    Option(
        "ssl-keyfile-password",
        SERVER,
        text,
        "Password of the private key; better given as the variable.",
    ),
    Option(
        "ssl-ca-certs", SERVER, text, "Authorities, in PEM, of the certificates that clients bring."
    ),
    Option(
        "ssl-cert-reqs",
        SERVER,
        named(one_of(*CertReqs), **{str(i): str(each) for i, each in enumerate(CertReqs)}),
        "Whether clients bring a certificate: `none`, `optional` or `required` (0, 1, 2).",
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
        "File with a line `KEY [NAME [WEIGHT]] [rpm=N] [tpm=N]` for each API key: the name is told "
        "in metrics, the weight (1 if not said) is the key's share under a fair policy, the last "
        "two are the most requests and tokens a minute. Lines that begin with `#` are comments.",
        shown="none",
        guards=True,
    ),
    Option(
        "admin-key",
        SERVER,
        text,
        "Key that `/v1/server_info`, `/v1/kv_events`, `/reset_prefix_cache`, what loads and "
        "unloads models and what writes flight records then ask for, and that sees and cancels the "
        "requests of all; better given as the variable.",
        shown="none: all who may call may call these",
        guards=True,
    ),
    Option(
        "tenant-secret",
        SERVER,
        text,
        "Secret that, with its key, sets a tenant's cached blocks apart; better given as the "
        "variable. Replicas that share blocks need the same.",
        shown="random at each start",
    ),
    Option(
        "shared-prefix-file",
        SERVED_MODEL,
        text,
        'JSON Lines, each `{"text": ...}` or `{"messages": [...]}`: prompt beginnings whose '
        "blocks all tenants may share.",
    ),
    Option(
        "timeline-requests",
        SERVER,
        integer(0),
        "How many of the last requests `/v1/requests/{id}` can tell of; 0 keeps none.",
    ),
    Option(
        "allowed-origins",
        SERVER,
        origin_list,
        "Origins of web pages that may call and read the answers (CORS), as "
        "`https://chat.example.com`, or `*`; repeat the flag (commas in the variable) for several.",
        shown="its own pages alone",
    ),
    Option(
        "allowed-hosts",
        SERVER,
        host_list,
        "Names, beside those of loopback, that requests may have in `Host`, ports left out, or "
        "`*`; asked of a server without API keys that listens on loopback, else if said.",
        shown="loopback's",
    ),
    Option(
        "page",
        SERVER,
        boolean,
        "Serve the page at `/`: chat, timelines and memory in a browser.",
        field="has_page",
    ),
    Option("max-body-bytes", SERVER, byte_count, "Largest request body."),
    Option(
        "max-half-read-bytes",
        SERVER,
        byte_count,
        "Largest sum of all request bodies that have not come whole; above it the one that has "
        "been coming for longest is answered 503.",
    ),
    Option(
        "batch-dir",
        SERVER,
        text,
        "Directory for the files of `/v1/files` and `/v1/batches`, which want one; batches go on "
        "after a restart with the same.",
    ),
    Option("batch-quota", SERVER, byte_count, "Bytes of all files that an API key may keep."),
    Option("max-upload-bytes", SERVER, byte_count, "Largest file that is uploaded."),
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
        "Seconds that a response is stored after it was last asked for.",
        field="response_store_ttl_s",
    ),
    Option(
        "shutdown-timeout",
        SERVER,
        seconds,
        "Seconds that running requests get to finish after SIGTERM.",
        field="shutdown_timeout_s",
    ),
    Option(
        "stuck-after",
        SERVER,
        some_seconds,
        "Seconds without a step under work before `/readyz` turns red and the engine is ended, "
        "to be followed by another.",
        field="stuck_after_s",
    ),
    Option(
        "max-engine-restarts",
        SERVER,
        integer(0),
        "How often within ten minutes an engine that has ended is followed by another; beyond it "
        "the model is down.",
    ),
    Option(
        "engine-standby",
        SERVER,
        boolean,
        "Fork engines from a process that keeps everything imported and nothing loaded, so that "
        "one which ends is followed sooner; it adds about 60 MB.",
    ),
    Option(
        "replicas",
        SERVER,
        integer(1, MAX_REPLICAS),
        "Engines of each model, on Ray Serve: on a Ray of the server's own, or in the cluster at "
        "`RAY_ADDRESS`. Wants the extra `ray` (see [scaling](scaling.md)).",
        shown="one, without Ray",
    ),
    Option(
        "max-replicas",
        SERVER,
        integer(1, MAX_REPLICAS),
        "Let the number of replicas follow the load, from `--replicas` up to so many.",
        shown="as many as `--replicas`",
    ),
    Option(
        "replica-routing",
        SERVER,
        one_of(*ReplicaRouting),
        "The replica of a request: `prefix` the one that has seen most of its prompt, unless that "
        "has many more requests than another; `load` the one with fewer requests of two.",
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
        "Format of the model's tool calls: `auto` the one that its chat template shows, or "
        "`generic` where that shows none; `none` takes no tools; or one of "
        f"{', '.join(f'`{name}`' for name in ToolFormatName.__members__)}.",
    ),
    Option(
        "reasoning-parser",
        SERVED_MODEL,
        one_of(AUTO, NO_PARSER, *ReasoningFormatName.__members__),
        "Format of the model's reasoning: `auto` the one whose tags its chat template has, `none` "
        "leaves reasoning in the content, or one of "
        f"{', '.join(f'`{name}`' for name in ReasoningFormatName.__members__)}.",
    ),
    Option(
        "trust-request-chat-template",
        SERVER,
        boolean,
        "Render the `chat_template` of requests, in a sandbox and a process of its own.",
    ),
    Option(
        "max-logprobs",
        SERVER,
        integer(0, 20),
        "The likeliest tokens that a request may ask for at each position of prompt and output.",
    ),
    Option(
        "generation-config",
        SERVED_MODEL,
        one_of(*GenerationConfig),
        "Sampling where a client says nothing: `auto` as the model's `generation_config.json` "
        "states, `none` OpenAI's defaults.",
    ),
    Option(
        "disable-any-whitespace",
        SERVED_MODEL,
        boolean,
        "Write JSON that a schema or tool asks for without white space that the model chooses: "
        "answers have none, arguments of tools a blank after each comma and colon. Models leave "
        "more lists empty then (see [schemas](schemas.md#white-space)).",
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
        "Least level that is logged.",
    ),
    Option(
        "log-format",
        SERVER,
        one_of(*LogFormat),
        "Lines of the log for people (`text`), or a JSON object each (`json`).",
    ),
)
