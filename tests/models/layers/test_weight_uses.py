"""A forward's weights are recorded with what they are used for."""

import torch
from torch import nn
from torch.nn.functional import linear

from quire.models.layers.weight_uses import WeightUses


class Layer(nn.Module):
    """A layer's product, an embedding, and a weight that is used with no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.linear = nn.Linear(3, 2)
        self.other = nn.Linear(3, 2)
        self.unused = nn.Linear(3, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.linear(self.embedding(ids))
        return states @ self.other.weight


def test_sizes_are_root_mean_squares_over_all_calls() -> None:
    layer, calls = Layer(), [torch.tensor([0, 1]), torch.tensor([[2], [4]])]
    with WeightUses() as uses:
        for ids in calls:
            layer(ids)
    rows = torch.cat([layer.embedding(ids).flatten(0, -2) for ids in calls])
    sizes = uses.input_sizes(layer.linear.weight)
    assert sizes is not None
    torch.testing.assert_close(sizes, rows.square().mean(0).sqrt())
    assert uses.input_sizes(layer.unused.weight) is None


def test_a_product_of_no_rows_has_no_sizes() -> None:
    layer = Layer()
    with WeightUses() as uses:
        linear(torch.zeros(0, 3), layer.linear.weight)
    assert uses.input_sizes(layer.linear.weight) is None


def test_operands_given_by_name_are_multiplied_all_the_same() -> None:
    layer, x = Layer(), torch.ones(1, 3)
    with WeightUses() as uses:
        found = linear(input=x, weight=layer.linear.weight)
    assert torch.equal(found, x @ layer.linear.weight.T)
    assert not uses.others


def test_weights_of_products_without_a_layer_are_told() -> None:
    layer = Layer()
    with WeightUses() as uses:
        layer(torch.tensor([0]))
    assert uses.others == {id(layer.other.weight)}
