"""`quire chat` and `quire top` where they cannot run: they say why, and what to do instead."""

import sys

import pytest

from quire.server.cli.main import main
from tests.workbench.terminal.pseudo_terminal import quire_in_terminal

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chat", "ftp://x"], "expected a URL such as http://localhost:8000"),
        (["chat", NOBODY, "--", "--dtype", "x"], "leave the URL out"),
        (["chat", "--model", "m"], "write `quire chat MODEL`"),
        (["chat", NOBODY], "needs a terminal, which standard input and standard output are not"),
        (["chat", NOBODY], "`quire run-batch`"),
        (["top"], "needs a terminal"),
        (["top", "nowhere"], "expected a URL such as http://localhost:8000"),
    ],
)
def test_it_says_what_would_be_right(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith(f"quire {words[0]}: ") and said in captured.err


def test_a_missing_library_is_named_with_how_to_install_it() -> None:
    code = (
        "import sys\n"
        "sys.modules['prompt_toolkit'] = None\n"
        "from quire.server.cli.main import main\n"
        f"sys.exit(main(['chat', '{NOBODY}']))"
    )
    with quire_in_terminal(command=(sys.executable, "-c", code)) as terminal:
        assert terminal.exit_code() == 2
        said = terminal.screen.replace("\n", "")
        assert "needs prompt_toolkit, installed with the extra `terminal`" in said
        assert "make install EXTRAS=terminal" in said
