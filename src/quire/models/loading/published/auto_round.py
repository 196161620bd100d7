"""AutoRound: the words of GPTQ or AWQ, with roundings that were learned, by arXiv 2309.05516. Each
weight has the bits that its words show, so settings of single weights need no look."""

from collections.abc import Mapping
from types import MappingProxyType

from quire.models.loading.published.awq import AwqFormat
from quire.models.loading.published.gptq import GptqFormat
from quire.models.loading.published.published_format import PublishedFormat, UnsupportedFormat
from quire.models.loading.published.settings import Settings, refuse_other

BITS = (2, 3, 4, 5, 6, 7, 8)
FLOAT_BITS = (16, 32)
USUAL = "auto_round:auto_gptq"
PACKINGS: Mapping[str, GptqFormat | AwqFormat] = MappingProxyType(
    {
        "auto_round": GptqFormat(BITS, 0),
        "auto_round:gptqmodel": GptqFormat(BITS, 0),
        USUAL: GptqFormat(BITS, 1),
        "auto": GptqFormat(BITS, 1),
        "auto_round:gptq": GptqFormat(BITS, 1),
        "auto_round:auto_awq": AwqFormat(),
        "auto_round:awq": AwqFormat(),
    }
)


def auto_round_format(settings: Settings) -> PublishedFormat:
    """Return the format by a checkpoint's settings. Raises UnsupportedFormat."""
    refuse_other(settings, "packing_format", tuple(PACKINGS))
    refuse_other(settings, "data_type", ("int",))
    refuse_other(settings, "act_bits", FLOAT_BITS)
    if settings.get("rotation_config"):
        raise UnsupportedFormat("whose rotation_config turns weights and activations")
    made = PACKINGS[str(settings.get("packing_format") or USUAL)]
    if isinstance(made, AwqFormat):
        refuse_other(settings, "bits", (4,))
        return made
    refuse_other(settings, "bits", BITS)
    return made
