"""`python -m tests.e2e.hostile`: every attack on a real server, and the table of what it did."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.generated_docs import Table, refreshed

from tests.e2e.hostile.attacks import ATTACKS
from tests.e2e.hostile.measure import Outcome, arena
from tests.e2e.hostile.report import line, markdown
from tests.e2e.hostile.target import Attack

DOCS = Path(__file__).parents[3] / "docs/security.md"


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    if options.list:
        for attack in ATTACKS:
            print(f"{attack.name}: {attack.what}")
        return 0
    unknown = set(options.only or ()) - {attack.name for attack in ATTACKS}
    if unknown:
        print(f"--only names no attack: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [attack for attack in ATTACKS if not options.only or attack.name in options.only]
    outcomes = []
    for outcome in outcomes_of(chosen, calm_s=options.calm_s, settle_s=options.settle_s):
        outcomes.append(outcome)
        print(line(outcome), flush=True)
        if options.markdown:
            options.markdown.write_text(markdown(outcomes), encoding="utf-8")
    print("\n" + markdown(outcomes), end="")
    if options.docs:
        text = DOCS.read_text(encoding="utf-8")
        table = Table("hostile", DOCS.name, lambda: markdown(outcomes))
        DOCS.write_text(refreshed(text, table), encoding="utf-8")
    num_missed = sum(bool(outcome.breaches) for outcome in outcomes)
    print(f"\n{len(outcomes)} attacks, {num_missed} of which missed an aim")
    return 0


def outcomes_of(attacks: Sequence[Attack], *, calm_s: float, settle_s: float) -> Iterator[Outcome]:
    """Make the attacks on one server, or on a new one where an attack has left the one before
    unfit."""
    left = list(attacks)
    while left:
        with arena() as ground:
            while left and ground.is_fit:
                yield ground.undergo(left.pop(0), calm_s=calm_s, settle_s=settle_s)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.hostile", description=__doc__)
    parser.add_argument("--only", action="append", metavar="ATTACK", help="repeat for several")
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/security.md")
    parser.add_argument(
        "--calm-s", type=float, default=2.0, help="seconds to watch before an attack [2]"
    )
    parser.add_argument(
        "--settle-s", type=float, default=30.0, help="seconds to give memory back [30]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
