"""The batch sizes that are captured."""

from hypothesis import given
from hypothesis import strategies as st

from quire.models.graphs.sizes import ladder, num_piece_rows, piece_bytes, piece_ladder


@given(st.integers(1, 2000))
def test_every_size_has_a_record_that_is_little_larger(max_num_seqs: int) -> None:
    sizes = ladder(max_num_seqs)
    assert sizes == sorted(set(sizes)) and sizes[-1] == max_num_seqs
    for count in range(1, max_num_seqs + 1):
        size = next(size for size in sizes if size >= count)
        assert size - count < (8 if count <= 256 else 16)
    assert len(sizes) <= 5 + 32 + max_num_seqs // 16


@given(st.integers(1, 4096))
def test_every_step_in_pieces_is_padded_little(max_num_tokens: int) -> None:
    sizes = piece_ladder(max_num_tokens)
    assert sizes == sorted(set(sizes)) and len(sizes) <= 21
    largest = min(max_num_tokens, 2048)
    assert sizes[-1:] == ([largest] if largest > 1 else [])
    for count in range(1, largest + 1 if sizes else 1):
        size = next(size for size in sizes if size >= count)
        assert size - count < max(32, size / 5)


@given(st.integers(2, 2048), st.integers(1, 2000))
def test_a_step_in_pieces_has_rows_for_its_requests(size: int, max_num_seqs: int) -> None:
    """One fewer than it has tokens: a step of as many is one of single tokens."""
    rows = num_piece_rows(size, max_num_seqs)
    assert 1 <= rows < size
    assert rows >= min(max_num_seqs, 256, size - 1)


@given(st.integers(1, 4096), st.integers(1, 100), st.integers(1, 1 << 20))
def test_pieces_take_what_the_largest_takes_and_something_for_each(
    max_num_tokens: int, num_layers: int, token_bytes: int
) -> None:
    taken = piece_bytes(max_num_tokens, num_layers, token_bytes)
    assert taken <= piece_bytes(max_num_tokens + 1, num_layers, token_bytes)
    sizes = piece_ladder(max_num_tokens)
    assert taken >= sum(sizes[-1:]) * token_bytes + len(sizes) * (num_layers + 1)
