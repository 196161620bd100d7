"""Every attack, in the order in which they are made."""

from tests.e2e.hostile.attacks import (
    bodies,
    connections,
    generations,
    grammars,
    heads,
    tokenizing,
)
from tests.e2e.hostile.target import Attack, Target


def nothing(target: Target) -> None:
    target.pause(5)


ATTACKS: tuple[Attack, ...] = (
    Attack("no attack", "5 s, to compare with", (), nothing),
    *heads.ATTACKS,
    *bodies.ATTACKS,
    *tokenizing.ATTACKS,
    *connections.ATTACKS,
    *grammars.ATTACKS,
    *generations.ATTACKS,
)
