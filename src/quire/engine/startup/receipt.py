"""The memory receipt: decisions about memory, as facts for the server and text for people."""

from collections import Counter
from collections.abc import Iterator, Sequence

from quire.cache.layout import LayerGroup, Layout
from quire.cache.sizing import MIB, KVCapacity
from quire.engine.messages import EngineFacts, LayerGroupFacts, MemoryFacts
from quire.engine.startup.kv_plan import Limits, Reasons


def memory_facts(
    capacity: KVCapacity, limits: Limits, reasons: Reasons, *, kv_dtype: str
) -> MemoryFacts:
    """Return the memory facts for the server."""
    layout = capacity.layout
    return MemoryFacts(
        kv_dtype=kv_dtype,
        kv_tokens=capacity.num_tokens(limits.max_model_len),
        kv_token_bytes=capacity.token_bytes,
        layer_groups=tuple(
            facts for group in layout.groups for facts in _group_facts(layout, group)
        ),
        padding_share=layout.padding_share,
        max_model_len_fits=capacity.largest_length(limits.model_max_len),
        max_concurrency=capacity.concurrency(limits.max_model_len),
        why_num_blocks=reasons.num_blocks,
        why_max_num_batched_tokens=reasons.num_tokens,
        passed_token_bytes=layout.passed_token_bytes,
        unseen_token_bytes=layout.unseen_token_bytes,
        why_kept_whole=str(layout.kept_whole or ""),
    )


def kept_whole_warning(memory: MemoryFacts) -> str | None:
    """Return a warning if layers with windows or chunks keep every token, else None."""
    if not memory.why_kept_whole:
        return None
    kept = [group for group in memory.layer_groups if group.is_kept_whole]
    return (
        f"{_layers_text(kept)}: these layers keep every token, since "
        f"{memory.why_kept_whole}; of a token that their windows have passed all layers hold "
        f"{memory.passed_token_bytes:,} bytes, where "
        f"{memory.passed_token_bytes - memory.unseen_token_bytes:,} would do"
    )


def padding_warning(layout: Layout) -> str | None:
    """Return a warning if the model's layers leave KV memory unused, else None."""
    if not layout.num_padding:
        return None
    return (
        f"{layout.num_padding} of {layout.num_places} places hold no layer, "
        f"{layout.padding_share:.1%} of KV memory"
    )


def receipt_text(facts: EngineFacts) -> str:
    """Return the memory receipt as text for the log."""
    memory = facts.memory
    lines = [f"  {line.kind:12} {line.num_bytes / MIB:12,.1f} MiB" for line in facts.receipt]
    weights = "" if facts.quantization == "none" else f", weights in {facts.quantization}"
    of = f"each of {facts.num_ranks} ranks, on {facts.device}" if facts.ranks else facts.device
    return "\n".join(
        [
            f"memory receipt of {of} ({facts.model_type}, {facts.dtype}{weights})",
            *lines,
            *_rank_lines(facts),
            f"  KV: {facts.num_blocks} blocks of {facts.block_size} tokens in {memory.kv_dtype}, "
            f"{memory.kv_tokens:,} tokens, {memory.kv_token_bytes:,} bytes a token "
            f"({memory.why_num_blocks})",
            *_state_lines(facts),
            f"  layers: {_layers_text(memory.layer_groups)}",
            *_kept_whole_lines(memory),
            f"  a step: {facts.max_num_batched_tokens} tokens "
            f"({memory.why_max_num_batched_tokens})",
            f"  reachable context: {memory.max_model_len_fits:,} tokens; a request has up to "
            f"{facts.max_model_len:,}",
            f"  concurrency at {facts.max_model_len:,} tokens a request: "
            f"{memory.max_concurrency:.1f}",
        ]
    )


def _rank_lines(facts: EngineFacts) -> list[str]:
    """Return a line for each rank."""
    return [
        f"  rank {rank} on {each.device}: weights {each.weight_bytes / MIB:,.1f} MiB, "
        f"KV {each.kv_bytes / MIB:,.1f} MiB"
        + (f", states {each.state_bytes / MIB:,.1f} MiB" if facts.num_states else "")
        for rank, each in enumerate(facts.ranks)
    ]


def _state_lines(facts: EngineFacts) -> list[str]:
    """Return lines for the states of recurrent layers, if there are any."""
    if not facts.num_states:
        return []
    (num_bytes,) = (line.num_bytes for line in facts.receipt if line.kind == "states")
    lines = [
        f"  states: {facts.num_states - 1} of {num_bytes / facts.num_states / MIB:,.1f} MiB, one "
        "for each running request, the others snapshots of prefixes"
    ]
    if facts.num_host_blocks or facts.num_host_states:
        lines.append(
            f"  swap: {facts.num_host_blocks} blocks and {facts.num_host_states} states of "
            "preempted requests and evicted prefixes"
        )
    return lines


def _kept_whole_lines(memory: MemoryFacts) -> list[str]:
    """Return a line for the warning, if there is one."""
    warning = kept_whole_warning(memory)
    return [] if warning is None else [f"  kept whole: {warning}"]


def _group_facts(layout: Layout, group: LayerGroup) -> Iterator[LayerGroupFacts]:
    """Yield the facts of the group's layers, by attention pattern. Layers that attend over the K
    and V of another count with that one."""
    num_sharing = Counter(source for _, source in layout.sharing)
    kinds: Counter[tuple[str, int | None]] = Counter()
    sharing: Counter[tuple[str, int | None]] = Counter()
    for position, layer in enumerate(group.layers):
        seen = group.seen_by(position)
        is_latent = layout.form(group, position).token_kv.is_latent
        told = "latent" if is_latent else str(seen.attention_type), seen.size
        kinds[told] += 1
        sharing[told] += num_sharing[layer]
    for (kind, reach), num_layers in kinds.items():
        yield LayerGroupFacts(
            kind,
            reach,
            num_layers,
            is_kept_whole=group.is_kept_whole and reach is not None,
            num_sharing=sharing[kind, reach],
        )


def _layers_text(groups: Sequence[LayerGroupFacts]) -> str:
    """Return how many layers see what, over all groups."""
    num_layers: Counter[tuple[str, int | None]] = Counter()
    num_sharing: Counter[tuple[str, int | None]] = Counter()
    for group in groups:
        num_layers[group.kind, group.reach] += group.num_layers
        num_sharing[group.kind, group.reach] += group.num_sharing
    told = []
    for (kind, reach), count in num_layers.items():
        size = "" if reach is None else f" {reach:,}"
        more = num_sharing[kind, reach]
        sharing = f" (and {more} that share their K and V)" if more else ""
        told.append(f"{count} x {kind}{size}{sharing}")
    return ", ".join(told)
