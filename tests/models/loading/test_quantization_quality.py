"""What int8 weights do to real ones: perplexity and bytes, printed and bounded."""

import pytest
from bench.perplexity import encode
from bench.quantization_quality import measure, table

from quire.models.config import Quantization
from tests.models.kv.test_kv_quality import text_for


@pytest.mark.usefixtures("w8a8_kernel")
@pytest.mark.parametrize("model", ["stories260K", "bundled"])
def test_int8_weights_change_perplexity_by_less_than_one_percent(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, text = text_for(model)
    token_ids = encode(folder, text)
    plain, int8 = found = [measure(folder, token_ids, name) for name in Quantization]
    with capsys.disabled():
        print(f"\n{table(model, found)}, {len(token_ids)} tokens")
    assert plain.perplexity > 1
    assert int8.perplexity != plain.perplexity, "weights were quantised indeed"
    assert abs(int8.perplexity / plain.perplexity - 1) < 0.01
    assert int8.weight_bytes < 0.7 * plain.weight_bytes, "8 bits and scales, of 12"
