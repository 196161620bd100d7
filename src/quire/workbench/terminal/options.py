"""The options of the commands of a terminal. Nothing heavy is imported here: `quire serve` imports
it too."""

import argparse

from quire.workbench.bench.options import header_safe

CHAT_EPILOG = (
    "Without a URL, the command starts `quire serve` on a free port with the options after `--`, "
    "and stops it with the chat: quire chat MODEL -- --dtype bfloat16. /help in the chat lists "
    "its commands."
)
TOP_URL = "http://127.0.0.1:8000"
KEY_HELP = "API key of the server; prefer the variable QUIRE_API_KEY"


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="?",
        metavar="MODEL|URL",
        help="a model to serve, or a running server, as in http://localhost:8000 [the default "
        "model of quire serve]",
    )
    parser.add_argument("--model", help="model of the server [the first that it lists]")
    parser.add_argument("--api-key", type=header_safe, help=KEY_HELP)
    parser.add_argument("--system", metavar="TEXT", default="", help="system prompt [none]")
    parser.add_argument(
        "--no-history", action="store_true", help="do not save messages for later chats"
    )


def add_top_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", nargs="?", metavar="URL", default=TOP_URL, help=f"a running server [{TOP_URL}]"
    )
    parser.add_argument("--model", help="model to watch, if the server has several")
    parser.add_argument("--api-key", type=header_safe, help=KEY_HELP)
