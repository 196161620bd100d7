"""The command `quire chat`: its arguments, and its options of sampling, with the API's ranges."""

import sys
from collections.abc import Mapping

from quire.server.app.exit_codes import USAGE_ERROR
from quire.server.cli.arguments import text_of
from quire.workbench.bench.exchange import parse_address
from quire.workbench.terminal.requirements import CannotRun, check_libraries, check_terminal

SAMPLING = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
INSTEAD = (
    "without one use curl on /v1/chat/completions of `quire serve`, or `quire run-batch` for a "
    "file of requests"
)


def chat_command(
    arguments: Mapping[str, object], serve_args: tuple[str, ...], environ: Mapping[str, str]
) -> int:
    """Run the command. Return the exit code."""
    try:
        url, serve_args = _target(arguments, serve_args)
        check_terminal({"standard input": sys.stdin, "standard output": sys.stdout}, INSTEAD)
        check_libraries()
    except (CannotRun, ValueError) as error:
        print(f"quire chat: {error}", file=sys.stderr)
        return USAGE_ERROR
    # Imported here: other commands need none of it, and may lack the libraries.
    from quire.server.apis.protocol.fields import GenerationFields
    from quire.workbench.terminal.chat import ChatOptions, run_chat
    from quire.workbench.terminal.sampling_options import rules_of_schema

    options = ChatOptions(
        url=url,
        serve_args=serve_args,
        model=text_of(arguments, "model"),
        api_key=text_of(arguments, "api_key") or environ.get("QUIRE_API_KEY") or None,
        system=text_of(arguments, "system") or "",
        keeps_history=not arguments["no_history"],
    )
    rules = rules_of_schema(GenerationFields.model_json_schema(), SAMPLING)
    return run_chat(options, rules, environ)


def _target(
    arguments: Mapping[str, object], serve_args: tuple[str, ...]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the URL of a server that runs, or None and the arguments of one to start. Raises
    ValueError for what does not go together."""
    target = text_of(arguments, "target")
    if target is not None and "://" in target:
        if serve_args:
            raise ValueError("what follows `--` is for a server of its own; leave the URL out")
        return parse_address(target).url, ()
    if arguments["model"] is not None and target is None:
        raise ValueError("--model is a name that a server of a URL lists; write `quire chat MODEL`")
    return None, (*([target] if target else ()), *serve_args)
