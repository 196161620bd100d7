"""The ways in which a plan of ranks divides the modules and parameters of a model."""

from enum import StrEnum


class Style(StrEnum):
    """The ways in which a module or a parameter is divided. Values are transformers' names.

    COLUMNS: a linear layer computes its share of the output's elements.
    COLUMNS_GATHERED: the same, and the output is put together again.
    ROWS: a linear layer is given its share of the input's elements, and outputs are summed.
    ROWS_OF_WHOLE: the same, where the input is whole.
    PACKED_COLUMNS, PACKED_ROWS: a parameter of experts, or by its outputs a linear layer, with gate
        and up, each of which is divided.
    EMBEDDING: an embedding keeps its share of the rows, and looked up rows are put together.
    EXPERTS: the output of experts whose parameters are divided is summed.
    """

    COLUMNS = "colwise"
    COLUMNS_GATHERED = "colwise_gather_output"
    ROWS = "rowwise"
    ROWS_OF_WHOLE = "rowwise_split_input"
    PACKED_COLUMNS = "packed_colwise"
    PACKED_ROWS = "packed_rowwise"
    EMBEDDING = "embedding_rowwise"
    EXPERTS = "moe_tp_experts"
