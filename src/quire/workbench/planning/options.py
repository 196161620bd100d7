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
        help="h100, a100, l4, a file that describes another device, or this machine: `this` for "
        "its GPU if it has one, `cpu` for its CPU [this]",
    )
    parser.add_argument(
        "--input-tokens", type=count, metavar="N", help="length of a prompt [512, or the maximum]"
    )
    parser.add_argument(
        "--output-tokens", type=count, metavar="N", help="length of a reply [128, or the maximum]"
    )
    parser.add_argument(
        "--diff",
        metavar="OPTIONS",
        help="make a second plan with these options added or replaced, and show both side by side: "
        "--diff='--kv-cache-dtype fp8'",
    )
    parser.add_argument(
        "--cost",
        type=writable,
        metavar="FILE.json",
        help="write the cost model of the plan, for `quire sim --cost`",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
