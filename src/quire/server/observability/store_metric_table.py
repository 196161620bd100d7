"""The metrics of the stores behind the prefix cache, as `metric_table.py` has the others: the
folder on disk, and blocks that engines send each other.
"""

from quire.server.observability.metric import Metric
from quire.server.observability.metric import counter as _counter
from quire.server.observability.metric import gauge as _gauge

STORE_METRICS: tuple[Metric, ...] = (
    _gauge(
        "prefix_disk_held_blocks",
        "Blocks, and states of recurrent layers, in the folder of the prefix cache.",
        twin=False,
    ),
    _gauge("prefix_disk_held_bytes", "Bytes in the folder of the prefix cache.", twin=False),
    _gauge(
        "prefix_disk_paused",
        "1 while writes to the folder of the prefix cache are paused after a disk failure, "
        "otherwise 0.",
        twin=False,
    ),
    _counter(
        "prefix_disk_lookups_total",
        "Blocks of prompts that memory lacked: on disk, on disk but faster to compute, or missing.",
        "result",
        twin=False,
    ),
    _counter(
        "prefix_disk_blocks_total",
        "Blocks of the prefix cache on disk, states of recurrent layers among them, by operation, "
        "or failed.",
        "event",
        twin=False,
    ),
    _counter("prefix_disk_loaded_tokens_total", "Tokens loaded from disk into memory.", twin=False),
    _counter(
        "prefix_disk_moved_bytes_total",
        "Bytes of blocks read from disk and written to disk.",
        "operation",
        twin=False,
    ),
    _counter(
        "prefix_disk_seconds_total",
        "Time of threads that read blocks from disk and write them to disk.",
        "operation",
        twin=False,
    ),
    _gauge(
        "kv_transfer_peers",
        "Peer engines: reachable and unreachable.",
        "state",
        twin=False,
    ),
    _gauge("kv_transfer_offered_blocks", "Blocks offered by the peer engines.", twin=False),
    _gauge(
        "kv_transfer_connections",
        "Connections of other engines that fetch blocks from this one.",
        twin=False,
    ),
    _counter(
        "kv_transfer_lookups_total",
        "Blocks of prompts that memory and disk lacked: requested, offered but faster to compute, "
        "or not offered.",
        "result",
        twin=False,
    ),
    _counter(
        "kv_transfer_blocks_total",
        "Blocks received from other engines, missing there, corrupt, and sent to others.",
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
        "Time of threads that receive blocks and send them.",
        "operation",
        twin=False,
    ),
    _counter(
        "kv_transfer_failures_total",
        "Aborted or slow reads, and refused connections.",
        "kind",
        twin=False,
    ),
)
