"""What a quantised KV cache does to real weights: perplexity and blocks, printed and bounded."""

from importlib.resources import files
from pathlib import Path

import pytest
from bench.kv_quality import measure, table
from bench.perplexity import encode

from quire.models.config import KVCacheDtype
from tests.models.reference import STORIES
from tests.models.test_bundled import HELD_OUT_TEXT

BUNDLED = Path(str(files("quire.models") / "bundled"))
SHAKESPEARE = STORIES.parents[1] / "data/tinyshakespeare.txt"
HELD_OUT_CHARACTERS = 6000
"""From the end of the play, which the bundled model has not read."""

STORY = """\
Once upon a time, there was a little girl named Lily. She loved to play outside in the sun. One day,
she saw a big red ball in the park. She wanted to play with it, but it was stuck in a tree. Lily was
sad. She asked her mom for help. Her mom said, "Don't worry, we can get the ball." They found a long
stick and pushed the ball. The ball fell down and Lily was very happy. She said, "Thank you, mom!"
Then a boy named Tim came to the park. He did not have a toy. Lily said, "Do you want to play with
me?" Tim smiled and said, "Yes, I do!" They played with the ball all day. They ran and jumped and
laughed. When the sun went down, they were tired. Tim said, "You are a good friend." Lily went home
with her mom. She ate some soup and went to bed. She had a dream about the red ball. The end.
"""


def text_for(model: str) -> tuple[Path, str]:
    if model == "bundled":
        if not SHAKESPEARE.is_file():
            return BUNDLED, HELD_OUT_TEXT
        return BUNDLED, SHAKESPEARE.read_text(encoding="utf-8")[-HELD_OUT_CHARACTERS:]
    if not STORIES.is_dir():
        pytest.skip("shared/models/stories260K is not there")
    return STORIES, STORY


@pytest.mark.parametrize("model", ["stories260K", "bundled"])
def test_int8_changes_perplexity_by_less_than_one_percent(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, text = text_for(model)
    token_ids = encode(folder, text)
    plain, fp8, int8 = found = [measure(folder, token_ids, dtype) for dtype in KVCacheDtype]
    with capsys.disabled():
        print(f"\n{table(model, found)}, {len(token_ids)} tokens")
    assert plain.perplexity > 1
    assert abs(int8.perplexity / plain.perplexity - 1) < 0.01
    assert abs(fp8.perplexity / plain.perplexity - 1) < 0.05
    assert int8.perplexity != plain.perplexity, "K and V were quantised indeed"
    assert int8.num_blocks == fp8.num_blocks > 2 * plain.num_blocks
