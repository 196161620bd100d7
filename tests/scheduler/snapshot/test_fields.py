"""A snapshot knows every field of scheduler and cache: it is taken, built anew by whoever restores,
or no decision depends on it."""

from inspect import get_annotations

from quire.cache.block_table import BlockTable, Swap
from quire.cache.chain import Chain
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.states.host_states import HostState, HostStates
from quire.cache.states.planned_places import PlannedPlaces
from quire.cache.states.policy import PLANNED
from quire.cache.states.state_pool import Snapshot, StatePool
from quire.cache.states.state_table import StateTable
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.request import NewRequest, Request, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.snapshot.arrival import ArrivalSnapshot

SCHEDULER = Scheduler(
    SchedulerConfig(4, 8, 64, 8),
    KVCache(CacheConfig(9, 2, num_host_blocks=4, num_states=4, num_host_states=2)),
)
FIXED = (
    "config cache policy running cost counters waiting acceptance admission prefix_waits builder "
    "urgency sessions"
)
KNOWN = {
    "scheduler": f"{FIXED} shares requests deadlines throughput appointments finished_requests "
    "ended number num_admitted journal loads pace expectations "
    "in_flight usage",  # journal, usage: taken by the engine after every step
    "admission": f"{FIXED} block_size keep_free calm_at",
    "waiting": "shares queues num_tokens heap in_heap num_entered last_left length changes "
    "num_late late_debt held_first num_late_running",  # the last is counted anew by every step
    "running": "shares by_id order queues num_late",
    "shares": "served level sweep_at live",
    "deadlines": "heap num_added",
    "throughput": "began ended_s num_tokens seconds was_busy busy_steps_s busy_s",
    "cost": "mode steps copies state_copies",
    "appointments": "cost throughput outputs last_s place_s given num_ended num_prompt",
    "expectations": "outputs waiting order foresight counters",
    "outputs": "all groups",
    "foresight": "service prefix_waits waiting running throughput recent",
    "order": "counters policy is_on most_s service prefix_waits waiting running",
    "pace": "times latest",  # latest: that of a step is found anew
    "times": "products moments coefficients num_since error most_prompt "
    "predicted_s",  # is only told
    "prefix_waits": "cache num_groups block_size is_enabled computing scheduled awaited num_steps",
    "builder": f"{FIXED} journal num_built",
    "sessions": f"{FIXED} is_on is_fair block_size table gaps shares unsaid num_unsaid until_of "
    "until num_sessions num_held held_since_s counts",
    "cache": "block_size groups windowed max_chunk_tokens is_caching hash log host pool epoch "
    "finder pins kept states copies offloads held",  # log: why a prefix was missed decides nothing
    "pins": "finder states state_of blocks_of payer_of num_pins is_caching",
    "states": "pool host copies is_reachable policy block_size is_caching seen max_seen "
    "least_tokens on_lasting",
    "pool": "free evictable num_refs key_of content_of block_of duplicates on_evict payers keepers",
    "host": "free num_blocks cached retained num_retainers private content_of on_evict payers",
}
PLAIN: dict[type, str] = {
    Request: "new table token_ids tenant priority_key running_order outlook lead_s is_ready "
    "loading_from num_loaded num_from_peers num_computed num_pending num_cached num_preemptions "
    "num_earlier_preemptions num_urgent num_discarded num_scored "
    "num_skips is_late is_held num_charged admitted_step arrived_s admitted_s first_token_s "
    "last_token_s last_gap_s num_late_tokens "  # the last two are only told
    "prompt_step timeline journal generated session",
    NewRequest: "id prompt_token_ids sampling stopping sharing prompt_logprobs tenant weight "
    "priority time_limit_s fork_of reports_prefill pooling pins_prompt "
    "target_ttft_s target_itl_s session endpoint retention_s",
    Stopping: "max_tokens min_tokens eos_token_ids stop_token_ids",
    BlockTable: "block_ids num_passed chain num_cached_blocks num_covered epoch swap num_from_host "
    "payer name states",
    StateTable: "live current position num_known num_saved wanted pending kept last_output "
    "num_output_blocks num_kv_found",  # the last is asked for at an admission alone
    Snapshot: "state_id content num_blocks kind before num_saved after used level num_hits "
    "num_lent priority",
}


def parts() -> dict[str, object]:
    """The stateful objects by the names of the fields that hold them."""
    found: dict[str, object] = {"scheduler": SCHEDULER}
    for holder in ("scheduler", "admission", "cache", "pace", "expectations"):
        for name, value in vars(found[holder]).items():
            found.setdefault(name.strip("_"), value)
    return found


def test_every_field_is_known() -> None:
    found = parts()
    for name, known in KNOWN.items():
        fields = {field.lstrip("_") for field in vars(found[name])}
        assert fields <= set(known.split()), name


def test_every_field_of_the_pool_of_states_is_known() -> None:
    pool = StatePool(4, PLANNED, 16, lambda content: True)
    fields = {field.lstrip("_") for field in vars(pool)}
    anew = {"gain_weight", "is_reachable", "offload", "num_held", "order"}
    assert fields == anew | set("free num_refs snapshots digest_of time level places".split())
    host = {field.lstrip("_") for field in vars(HostStates(2))}
    assert host == {"num_states", "free", "cached", "swapped"}
    places = {field.lstrip("_") for field in vars(PlannedPlaces(4, 1))}
    assert places == {"max_places", "rung_doubt", "places", "counts"}


def test_every_field_of_plain_values_is_known() -> None:
    for kind, known in PLAIN.items():
        assert list(get_annotations(kind)) == known.split(), kind
    assert list(Swap._fields) == ["num_computed", "epoch", "retained", "private", "state_id"]
    assert list(HostState._fields) == ["state_id", "content", "num_blocks", "kind"]
    assert len(Chain.__slots__) == 7
    assert len(ArrivalSnapshot._fields) == 18
