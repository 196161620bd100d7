"""A report of what API keys have used, as it is shown."""

from quire.server.apis.descriptions import CREATED_S
from quire.server.app.usage.report import KeyUsage, ModelUsage, UsageCounts, UsageReport
from quire.server.config import BUNDLED_MODEL_NAME
from quire.server.tenancy.usage_accounts import RequestEnd

_COUNTS = UsageCounts(
    prompt_tokens=5120,
    cached_tokens=3072,
    output_tokens=800,
    wasted_tokens=96,
    lost_tokens=0,
    preemptions=2,
    kv_block_ns=412_000_000_000,
    host_block_ns=0,
    queue_ns=1_250_000_000,
    requests={end.value: 0 for end in RequestEnd} | {"stop": 9, "length": 1},
)
_LIMITED = {"requests": 0, "tokens": 0}
REPORT = UsageReport(
    CREATED_S,
    _COUNTS,
    _LIMITED,
    (KeyUsage("team-a", _COUNTS, _LIMITED, (ModelUsage(BUNDLED_MODEL_NAME, _COUNTS),)),),
)
