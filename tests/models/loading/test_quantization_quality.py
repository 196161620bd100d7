"""Weights of fewer bits cost real models little: perplexity and bytes, printed and bounded."""

import pytest
from bench.perplexity import encode
from bench.quantization_quality import measure, table

from quire.models.config import Quantization
from tests.models.kv.test_kv_quality import text_for


@pytest.mark.usefixtures("w8a8_kernel")
@pytest.mark.parametrize("model", ["stories260K", "bundled"])
def test_weights_of_fewer_bits_change_perplexity_by_little(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, text = text_for(model)
    token_ids = encode(folder, text)
    """By less than one percent in int8; in int4 by less than ten, since models of so few weights
    have none to spare."""
    plain, int8, int4 = found = [measure(folder, token_ids, name) for name in Quantization]
    with capsys.disabled():
        print(f"\n{table(model, found)}, {len(token_ids)} tokens")
    assert plain.perplexity > 1
    for each, change, share in ((int8, 0.01, 0.77), (int4, 0.1, 0.6)):
        assert each.perplexity != plain.perplexity, "weights were quantised indeed"
        assert abs(each.perplexity / plain.perplexity - 1) < change
        assert each.weight_bytes < share * plain.weight_bytes, "of 12 bits"
