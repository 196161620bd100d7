"""The metrics of the stores behind the prefix cache, as `metric_table.py` has the others: the
folder on disk, and blocks that engines send each other.
"""

from quire.server.observability.metric import Metric
from quire.server.observability.metric import counter as _counter
from quire.server.observability.metric import gauge as _gauge

STORE_METRICS: tuple[Metric, ...] = (
    _gauge("prefix_disk_held_blocks", "Blocks in the folder of the prefix cache.", twin=False),
    _gauge("prefix_disk_held_bytes", "Bytes in the folder of the prefix cache.", twin=False),
    _gauge(
        "prefix_disk_paused",
        "1 while nothing is written to the folder of the prefix cache, since the disk has failed.",
        twin=False,
    ),
    _counter(
        "prefix_disk_lookups_total",
        "Blocks of prompts that memory lacked: on disk, on disk but sooner computed, or not.",
        "result",
        twin=False,
    ),
    _counter(
        "prefix_disk_blocks_total",
        "Blocks of the prefix cache on disk by what was done with them, or failed.",
        "event",
        twin=False,
    ),
    _counter("prefix_disk_loaded_tokens_total", "Tokens loaded from disk into memory.", twin=False),
    _counter(
        "prefix_disk_moved_bytes_total",
        "Bytes of blocks read from disk and written to it.",
        "operation",
        twin=False,
    ),
    _counter(
        "prefix_disk_seconds_total",
        "Seconds that threads read blocks from disk and wrote them to it.",
        "operation",
        twin=False,
    ),
    _gauge(
        "kv_transfer_peers",
        "Engines to get blocks from: those that can be asked now, and those that cannot.",
        "state",
        twin=False,
    ),
    _gauge("kv_transfer_offered_blocks", "Blocks that these engines offer.", twin=False),
    _gauge(
        "kv_transfer_connections",
        "Connections by which other engines ask this one for blocks.",
        twin=False,
    ),
    _counter(
        "kv_transfer_lookups_total",
        "Blocks of prompts that memory and disk lacked: asked for, offered but sooner computed, or "
        "offered by nobody.",
        "result",
        twin=False,
    ),
    _counter(
        "kv_transfer_blocks_total",
        "Blocks that came from other engines, were gone there or not what they should be, and that "
        "went to others.",
        "event",
        twin=False,
    ),
    _counter("kv_transfer_loaded_tokens_total", "Tokens loaded from other engines.", twin=False),
    _counter(
        "kv_transfer_bytes_total",
        "Bytes of blocks received from other engines and sent to them.",
        "operation",
        twin=False,
    ),
    _counter(
        "kv_transfer_seconds_total",
        "Seconds that threads received blocks and sent them.",
        "operation",
        twin=False,
    ),
    _counter(
        "kv_transfer_failures_total",
        "Reads that broke off or were too slow, and connections that were not let in.",
        "kind",
        twin=False,
    ),
)
