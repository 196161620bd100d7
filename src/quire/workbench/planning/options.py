"""The options of `quire plan`. Nothing heavy is imported here: every command imports it."""

import argparse

from quire.output_files import writable
from quire.workbench.bench.options import count


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `quire plan` beside those that it has of `quire serve`."""
    parser.add_argument(
        "--device",
        dest="planned_device",
        metavar="DEVICE",
        default="this",
        help="h100, a100, l4, a file that describes another, or this machine: `this` its GPU if it "
        "has one, `cpu` [this]",
    )
    parser.add_argument(
        "--input-tokens", type=count, metavar="N", help="length of a prompt [512, or what fits]"
    )
    parser.add_argument(
        "--output-tokens", type=count, metavar="N", help="length of a reply [128, or what fits]"
    )
    parser.add_argument(
        "--diff",
        metavar="OPTIONS",
        help="plan once more with these options added or replaced, and show both plans beside each "
        "other: --diff='--kv-cache-dtype fp8'",
    )
    parser.add_argument(
        "--cost",
        type=writable,
        metavar="FILE.json",
        help="write the cost of the plan's steps, which `quire sim --cost` reads",
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
