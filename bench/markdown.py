"""Tables as Markdown has them."""

from collections.abc import Sequence


def table(cells: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, the first row its headings."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    padded = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])
