"""What every kernel of linear layers must do, whatever form it keeps weights in. A new one passes
with a row in `FORMATS`."""

import importlib.util

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.weights.lazy_weight import OpenedWeight
from tests.instructions import ISAS_WITH_PRODUCTS, built_library, library_of
from tests.models.rounding import Exact, assert_within, in_dtype
from tests.models.weights.formats import EXPONENTS, FORMATS, halves, numbers, spread
from tests.models.weights.subject import Subject

CASES = [(name, isa) for name, each in FORMATS.items() for isa in each.isas or (None,)]
NATIVE = [(name, isa) for name, isa in CASES if isa]
"""They check what they are given: a GPU would not tell in time."""


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(filter(None, case)))
def subject(request: pytest.FixtureRequest) -> Subject:
    name, isa = request.param
    if isa is None and importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    kernel = FORMATS[name].bind(built_library() if isa is None else library_of(isa))
    assert kernel is not None
    return Subject(kernel, FORMATS[name])


native = pytest.mark.parametrize("subject", NATIVE, ids="-".join, indirect=True)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """By which every NaN is one of its own, and zeros have a sign."""
    return a.dtype == b.dtype and torch.equal(*(x.contiguous().view(torch.uint8) for x in (a, b)))


@given(data=st.data())
def test_product_is_that_of_what_is_packed(subject: Subject, data: st.DataObject) -> None:
    x, weight, bias = subject.draw(data)
    if subject.format.quantises_x:
        x *= 10.0 ** data.draw(st.sampled_from(EXPONENTS))
    x[data.draw(st.integers(0, len(x) - 1))] = 0
    if isinstance(weight, Tensor):
        weight[data.draw(st.integers(0, len(weight) - 1))] = 0
    found = subject.kernel.linear(x, subject.pack(weight), bias)
    assert found.dtype == x.dtype
    assert_within(found, subject.exact(x, weight, bias))


@native
@pytest.mark.parametrize(
    ("m", "n", "k"), [(257, 700, 300), (520, 300, 2048), (530, 600, 1184), (1030, 33, 4096)]
)
def test_product_of_many_rows_is_that_of_each(subject: Subject, m: int, n: int, k: int) -> None:
    weight = subject.made(n, k)
    x, bias, packed = subject.x(m, weight), numbers(n, dtype=weight.dtype), subject.pack(weight)
    found = subject.kernel.linear(x, packed, bias)
    assert_within(found, subject.exact(x, weight, bias))
    for row in range(0, m, 97):
        assert torch.equal(found[row], subject.kernel.linear(x[row], packed, bias))


@given(data=st.data())
def test_row_has_the_same_product_alone_and_in_company(
    subject: Subject, data: st.DataObject
) -> None:
    """Over weights of any bits."""
    x, weight, bias = subject.draw(data, is_odd=True)
    packed = subject.pack(weight)
    together = subject.kernel.linear(x, packed, bias)
    alone = [subject.kernel.linear(row[None], packed, bias) for row in x]
    assert same_bits(together, torch.cat(alone))


@native
def test_products_are_the_same_on_any_number_of_threads(subject: Subject) -> None:
    """Also where as many threads have packed the weight."""
    weight, before = subject.made(1000, 300), torch.get_num_threads()
    inputs = [subject.x(m, weight) for m in (1, 6, 7, 13, 32, 33, 49, 100, 300)]
    found: list[list[Tensor]] = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        packed = subject.pack(weight)
        found.append([subject.kernel.linear(x, packed, None) for x in inputs])
    torch.set_num_threads(before)
    for one, *others in zip(*found, strict=True):
        assert all(torch.equal(one, other) for other in others)


@given(data=st.data())
def test_numbers_come_back_as_near_as_they_are_packed(
    subject: Subject, data: st.DataObject
) -> None:
    """To the bit where none is quantised. So do rows, as an embedding looks them up."""
    weight = subject.draw(data, is_odd=True).weight
    plain, packed = subject.values(weight), subject.pack(weight)
    unpacked = subject.kernel.unpack(packed)
    if subject.kernel.is_exact:
        assert same_bits(unpacked, plain)
    elif subject.format.off is not None:
        limit = Exact(plain.double(), subject.format.off(plain))
        assert_within(unpacked, in_dtype(limit, unpacked.dtype))
    places = st.lists(st.integers(0, len(unpacked) - 1), min_size=1, max_size=9)
    indices = torch.tensor([data.draw(places)])
    assert same_bits(subject.kernel.rows(indices, packed), unpacked[indices])


@given(data=st.data())
def test_a_packed_weight_takes_the_bytes_that_are_planned(
    subject: Subject, data: st.DataObject
) -> None:
    weight = subject.draw(data).weight
    num_bytes, planned = subject.pack(weight).packed.nbytes, subject.planned_bytes(weight)
    if subject.format.num_bytes is not None:
        assert num_bytes == subject.format.num_bytes(*weight.shape)
    if subject.format.is_planned:
        assert num_bytes == planned


@given(data=st.data())
def test_joined_weights_are_one_and_stay_what_they_were(
    subject: Subject, data: st.DataObject
) -> None:
    """The rows of all but the last fill their panels, if there are any."""
    counts, k, m = data.draw(subject.format.joined)
    panel, seeds = subject.format.panel_rows, st.integers(0, 9)
    whole_panels = [-(-n // panel) * panel for n in counts[:-1]]
    weights = [
        subject.made(n, k, seed=data.draw(seeds), is_odd=True) for n in (*whole_panels, counts[-1])
    ]
    parts = [subject.pack(weight) for weight in weights]
    x, linear = subject.x(m, weights[0]), subject.kernel.linear
    before = [subject.kernel.unpack(part) for part in parts]
    products = [linear(x, part, None) for part in parts]
    joined = subject.kernel.join(parts)
    assert joined is not None and joined.num_rows == sum(len(each) for each in before)
    assert same_bits(subject.kernel.unpack(joined), torch.cat(before))
    assert same_bits(linear(x, joined, None), torch.cat(products, -1))
    memory = joined.packed.untyped_storage().data_ptr()
    for part, numbers_before, product in zip(parts, before, products, strict=True):
        assert same_bits(subject.kernel.unpack(part), numbers_before)
        assert same_bits(linear(x, part, None), product)
        assert part.packed.untyped_storage().data_ptr() == memory


@native
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_in_its_row_and_column(subject: Subject, bad: float) -> None:
    """Quantised rows become NaN; other products are what they are by definition."""
    for dtype in subject.format.dtypes:
        weight = subject.made(20, 333, dtype)
        x, column = subject.x(9, weight), int(spread(weight.shape[1]).argmax())
        before = subject.kernel.linear(x, subject.pack(weight), None)
        x[1, column] = bad
        if isinstance(weight, OpenedWeight):
            weight.weight.scales[7, column // weight.weight.group_size] = bad
        else:
            weight[7, column] = bad
        found = subject.kernel.linear(x, subject.pack(weight), None)
        assert not found[1].isfinite().any() and not found[:, 7].isfinite().any()
        if subject.format.quantises_x:
            assert found[1].isnan().all()
        if not subject.kernel.is_exact:
            assert found[:, 7].isnan().all()
        elif isinstance(weight, Tensor):
            assert torch.equal(found.isnan(), (x.double() @ weight.double().T).isnan())
        found[1], found[:, 7] = before[1], before[:, 7]
        assert torch.equal(found, before)


def test_inputs_of_any_place_and_stride_are_read_right(subject: Subject) -> None:
    weight = subject.made(40, 31)
    k = weight.shape[1]
    store = numbers(20 * k + 1, dtype=weight.dtype)
    for x in (store[1:].view(20, k), store[1:].view(k, 20).T, store[1:].view(10, 2 * k)[:, ::2]):
        for w in (weight, weight.T.contiguous().T) if isinstance(weight, Tensor) else (weight,):
            assert_within(
                subject.kernel.linear(x, subject.pack(w), None), subject.exact(x, w, None)
            )


def test_leading_dimensions_are_kept(subject: Subject) -> None:
    weight = subject.made(5, 20)
    packed, k = subject.pack(weight), weight.shape[1]
    x = subject.x(6, weight)
    found = subject.kernel.linear(x.view(2, 3, k), packed, None)
    assert torch.equal(found, subject.kernel.linear(x, packed, None).view(2, 3, 5))
    assert subject.kernel.linear(x[:0], packed, None).shape == (0, 5)
    assert subject.kernel.linear(x[:0].view(2, 0, k), packed, None).shape == (2, 0, 5)


@native
def test_what_does_not_fit_is_refused(subject: Subject) -> None:
    weight = subject.made(5, 20)
    packed, x = subject.pack(weight), subject.x(1, weight)
    for index in (-1, 5):
        with pytest.raises(IndexError, match="5 rows"):
            subject.kernel.rows(torch.tensor([index]), packed)
    for other in (x.to(torch.float64), x.half(), x[:, :-1], torch.cat([x, x], 1)):
        with pytest.raises(ValueError, match="must be"):
            subject.kernel.linear(other, packed, None)


@native
def test_weights_of_other_dtypes_are_not_taken(subject: Subject) -> None:
    """Those that are stored in groups are of no dtype of a tensor's."""
    for dtype in {torch.float16, torch.bfloat16, torch.float32, torch.float64}:
        weight, is_grouped = halves(4, 32, dtype, 0), isinstance(subject.made(1, 1), OpenedWeight)
        is_taken = dtype in subject.format.dtypes and not is_grouped
        assert subject.kernel.takes(weight) == is_taken
        if not is_taken:
            with pytest.raises(ValueError, match="only weights that" if is_grouped else "must be"):
                subject.kernel.pack(weight)


@pytest.mark.parametrize(
    "name", [name for name, each in FORMATS.items() if each.isas == ISAS_WITH_PRODUCTS]
)
def test_sets_without_its_products_have_no_kernel(name: str) -> None:
    assert FORMATS[name].bind(library_of("portable")) is None
