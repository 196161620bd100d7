"""Public beginnings of prompts: as long as they are common; a bad file is told by its line."""

import json
from os.path import commonprefix
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.prefixes.shared_file import load_shared_prefixes
from quire.server.models.shared_prefixes import SharedPrefixError, SharedPrefixes
from quire.server.text.tokenizer import TextTokenizer
from tests.server.served import eventually, plain_config, serving, with_model

TOKENS = st.lists(st.integers(0, 2), max_size=8).map(tuple)


@given(prefixes=st.lists(TOKENS), prompt=TOKENS)
def test_longest_common_beginning(prefixes: list[tuple[int, ...]], prompt: tuple[int, ...]) -> None:
    naive = max((len(commonprefix([prompt, each])) for each in prefixes), default=0)
    assert SharedPrefixes(prefixes).num_shared(prompt) == naive


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 3: The line is not valid JSON"),
        ("[]", "line 3: The line must be a JSON object"),
        ("{}", "one of 'text' and 'messages' is wanted"),
        ('{"text": "a", "messages": []}', "one of 'text' and 'messages' is wanted"),
        ('{"text": 1}', "Invalid 'text'"),
        ('{"txt": "a"}', "Unknown field 'txt'. Did you mean 'text'?"),
        ('{"messages": [{"role": "nobody", "content": "a"}]}', "messages[0].role"),
        ('{"messages": [{"role": "user"}]}', "messages[0].content"),
    ],
)
def test_a_bad_line_is_told(tmp_path: Path, tokenizer: TextTokenizer, line: str, why: str) -> None:
    file = tmp_path / "prefixes.jsonl"
    file.write_text(f'{{"text": "good"}}\n\n{line}\n')
    with pytest.raises(SharedPrefixError) as wrong:
        load_shared_prefixes(str(file), tokenizer)
    assert f"{file} line 3: " in str(wrong.value) and why in str(wrong.value)


def test_requests_say_how_much_of_them_is_public(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Thou art a player of the king's own company."}
    file = tmp_path / "prefixes.jsonl"
    file.write_text(
        json.dumps({"text": "To be, or not to be"}) + "\n" + json.dumps({"messages": [system]})
    )
    with serving(with_model(plain_config(), shared_prefix_file=str(file))) as served:
        served.complete(prompt="To be, or not to be, that is the question")
        served.complete(prompt="To be, or not to be, that is", cache_salt="mine")
        served.chat(messages=[system, {"role": "user", "content": "Who art thou?"}], max_tokens=1)
        played, private, chat = served.engine.submitted
    assert played.sharing.num_public_tokens > 3
    assert private.sharing.num_public_tokens == 0
    assert 10 < chat.sharing.num_public_tokens < len(chat.prompt_token_ids)


def test_a_file_that_is_not_there_fails_the_start(tmp_path: Path) -> None:
    config = with_model(plain_config(), shared_prefix_file=str(tmp_path / "none"))
    with serving(config, loaded=False) as served:
        assert eventually(lambda: served.client.get("/livez").status_code == 503)
        reason = served.client.get("/livez").json()["reason"]
    assert reason.startswith("--shared-prefix-file: cannot read") and "none" in reason
