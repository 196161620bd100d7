"""The batch sizes that are captured."""

from hypothesis import given
from hypothesis import strategies as st

from quire.models.graphs.sizes import ladder


@given(st.integers(1, 2000))
def test_every_size_has_a_record_that_is_little_larger(max_num_seqs: int) -> None:
    sizes = ladder(max_num_seqs)
    assert sizes == sorted(set(sizes)) and sizes[-1] == max_num_seqs
    for count in range(1, max_num_seqs + 1):
        size = next(size for size in sizes if size >= count)
        assert size - count < (8 if count <= 256 else 16)
    assert len(sizes) <= 5 + 32 + max_num_seqs // 16
