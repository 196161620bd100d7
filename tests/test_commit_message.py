"""Messages of commits are held to the rules by the hook."""

import pytest
from tools.commit_message import faults


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Blocks are told apart\n\nThey had one digest.\n", []),
        ("Blocks are told apart\n", ["it has no body"]),
        ("# nothing but comments\n", ["it has no subject", "it has no body"]),
        ("wip\n\nbody", ["its subject says that it is not finished"]),
        ("fixup! Blocks\n\nbody", ["its subject says that it is not finished"]),
        (f"{'x' * 73}\n\nbody", ["its subject has 73 characters"]),
        ("Subject\nbody", ["its second line is not empty"]),
        ("Subject\n\n# a comment of git\n", ["it has no body"]),
    ],
)
def test_what_is_wrong_with_a_message_is_said(message: str, said: list[str]) -> None:
    found = list(faults(message))
    assert len(found) == len(said)
    assert all(each.startswith(begin) for each, begin in zip(found, said, strict=True))
