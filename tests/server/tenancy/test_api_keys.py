"""The file of API keys: names, weights and rates; what is wrong is told without the key."""

from pathlib import Path

import pytest

from quire.server.config import ApiKey, InvalidOption
from tests.server.cli.test_settings import config_of


def test_keys_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n two ann\nthree  b-1  0.5\n")
    assert config_of("--api-key-file", str(file), QUIRE_API_KEY="zero").api_keys == (
        ApiKey("zero"),
        ApiKey("one"),
        ApiKey("two", "ann"),
        ApiKey("three", "b-1", 0.5),
    )
    file.write_text("")
    with pytest.raises(InvalidOption, match="no key"):
        config_of("--api-key-file", str(file))
    with pytest.raises(InvalidOption, match="cannot read"):
        config_of("--api-key-file", str(tmp_path / "none"))


def test_comments_and_a_byte_order_mark_are_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    text = "one\n# of the team\n  #two\n#three x 1 2\nfour#4 dan\n"
    file.write_bytes(text.encode("utf-8-sig"))
    keys = config_of("--api-key-file", str(file)).api_keys
    assert keys == (ApiKey("one"), ApiKey("four#4", "dan"))
    file.write_bytes(b"\xef\xbb\xbf# nothing but a comment\n")
    with pytest.raises(InvalidOption, match="no key"):
        config_of("--api-key-file", str(file))


def test_line_numbers_of_the_key_file_count_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# first\n\nhush ann x\n")
    with pytest.raises(InvalidOption, match="line 3: a weight is a number above 0"):
        config_of("--api-key-file", str(file))


@pytest.mark.parametrize(
    ("lines", "number", "why"),
    [
        ("hush ann\ntwo ann\n", 2, "the name is that of another key"),
        ("hush\n\nhush\n", 3, "the key is given twice"),
        ("zero\n", 1, "the key is given twice"),
        ("hush a 1 2\n", 1, "got 4 words"),
        ("hush a/b\n", 1, "a name has"),
        ("hush a 0\n", 1, "above 0"),
        ("hush a inf\n", 1, "above 0"),
        ("two\nhush b x\n", 2, "above 0"),
        ("hush rps=1\n", 1, "known numbers are rpm=N, tpm=N, ttft_ms=N, itl_ms=N"),
        ("hush a rpm=1 1 rpm=2\n", 1, "rpm is given twice"),
        ("hush a rpm=0\n", 1, "rpm is an integer of 1 or more"),
        ("hush a tpm=1.5\n", 1, "tpm is an integer of 1 or more"),
        ("hush a tpm=\n", 1, "tpm is an integer"),
        ("hush a rpm=٣\n", 1, "rpm is an integer"),
        ("hush a 1 2 rpm=1\n", 1, "and numbers, got 4 words"),
    ],
)
def test_bad_line_of_the_key_file_is_named_without_the_key(
    tmp_path: Path, lines: str, number: int, why: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(lines)
    with pytest.raises(InvalidOption, match=f"line {number}: .*{why}") as wrong:
        config_of("--api-key-file", str(file), "--api-key", "zero")
    assert "hush" not in str(wrong.value)


def test_rates_stand_anywhere_behind_the_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a=b rpm=60\ntwo ann 0.5 tpm=10000 rpm=1\nthree rpm=5 b-1\nfour tpm=7 c 2\n")
    assert config_of("--api-key-file", str(file)).api_keys == (
        ApiKey("a=b", requests_per_minute=60),
        ApiKey("two", "ann", 0.5, requests_per_minute=1, tokens_per_minute=10000),
        ApiKey("three", "b-1", requests_per_minute=5),
        ApiKey("four", "c", 2.0, tokens_per_minute=7),
    )
