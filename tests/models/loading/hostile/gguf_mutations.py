"""Changes of a GGUF file as a stranger could make them: of its bytes, its head, the fields of its
model and its tokenizer."""

import struct
from collections.abc import Callable
from random import Random

from tests.models.loading.hostile.gguf_parts import (
    ARRAY,
    STRING,
    GgufParts,
    number,
    numbers,
    string,
    taken_apart,
    texts,
)

Mutation = Callable[[Random, GgufParts, bytes], bytes]
EXTREMES = (0, 1, 2, 7, 255, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 40) + 3)
HUGE = (*EXTREMES, (1 << 61) + 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 1)
FLOATS = (0.0, -0.0, -1.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"))
TOKENS = "tokenizer.ggml."
TEMPLATES = (
    b"{% if %}",
    b"{{ messages",
    b"{% for m in messages %}" * 300,
    b"{{ " + b"(" * 50_000,
    b"{{ " + b"-" * 5_000 + b"1 }}",
    b"{% for i in range(10**9) %}{{ i }}{% endfor %}",
    b"{{ 'a' * 10**9 }}",
    b"{{ ''.__class__.__mro__[1].__subclasses__() }}",
    b"{% include '/etc/passwd' %}",
    b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    b"\xff\xfe",
    b"",
)


def mutated(seed: int, content: bytes) -> tuple[str, bytes]:
    """Return the name of the change that a seed draws, and the file that it makes."""
    random = Random(seed)
    name = random.choice(sorted(MUTATIONS))
    return name, MUTATIONS[name](random, taken_apart(content), content)


def _bytes_anywhere(random: Random, parts: GgufParts, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _bits_of_the_head(random: Random, parts: GgufParts, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(content) - len(parts.content))
        changed[at] ^= 1 << random.randrange(8)
    return bytes(changed)


def _count_in_the_head(random: Random, parts: GgufParts, content: bytes) -> bytes:
    changed = bytearray(content)
    form, values = random.choice((("<Q", HUGE), ("<I", tuple(x for x in EXTREMES if x < 1 << 32))))
    struct.pack_into(form, changed, random.choice(parts.places), random.choice(values))
    return bytes(changed)


def _cut(random: Random, parts: GgufParts, content: bytes) -> bytes:
    return content[: random.randrange(len(content))]


def _longer(random: Random, parts: GgufParts, content: bytes) -> bytes:
    return content + random.randbytes(random.choice((1, 31, 4096)))


def _counts(random: Random, parts: GgufParts, content: bytes) -> bytes:
    if random.random() < 0.5:
        parts.num_values = random.choice((*HUGE, len(parts.values) - 1, len(parts.values) + 1))
    else:
        parts.num_tensors = random.choice((*HUGE, len(parts.tensors) - 1, len(parts.tensors) + 1))
    return parts.written()


def _twice(random: Random, parts: GgufParts, content: bytes) -> bytes:
    if random.random() < 0.5:
        parts.values.append(random.choice(parts.values))
    else:
        parts.tensors.append(random.choice(parts.tensors))
    return parts.written()


def _left_out(random: Random, parts: GgufParts, content: bytes) -> bytes:
    if random.random() < 0.6:
        parts.values.pop(random.randrange(len(parts.values)))
    else:
        parts.tensors.pop(random.randrange(len(parts.tensors)))
    return parts.written()


def _another_type(random: Random, parts: GgufParts, content: bytes) -> bytes:
    key = random.choice(parts.keys())
    made = (
        (0, number(0, 1)),
        (7, number(7, 1)),
        (5, number(5, -1)),
        (6, number(6, random.choice(FLOATS))),
        (12, number(12, random.choice(FLOATS))),
        (11, number(11, -(1 << 63))),
        (STRING, string(random.choice((b"", b"x", b"\xff", b"4", b"\x00")))),
        (ARRAY, numbers(4, [1, 2, 3])),
        (ARRAY, texts([b"a", b"b"])),
        (ARRAY, struct.pack("<IQIQ", ARRAY, 1, ARRAY, 1)),
        (ARRAY, struct.pack("<IQ", random.choice((8, 9, 13, 77)), random.choice(HUGE))),
        (random.choice((13, 99, (1 << 32) - 1)), b"\0" * 8),
    )
    parts.put(key, *random.choice(made))
    return parts.written()


def _field(random: Random, parts: GgufParts, content: bytes) -> bytes:
    """A number of the model that is none it can have."""
    names = [key for key in parts.keys() if not key.startswith(("tokenizer.", "general."))]
    architecture = names[0].split(".")[0]
    names += [
        f"{architecture}.{each}"
        for each in (
            *("rope.dimension_count", "expert_count", "rope.scaling.factor", "vocab_size"),
            *("attention.sliding_window", "attention.sliding_window_pattern", "logit_scale"),
            *("rope.freq_base_swa", "rope.scaling.original_context_length", "embedding_scale"),
            *("attn_logit_softcapping", "final_logit_softcapping", "attention.value_length"),
        )
    ]
    for _ in range(random.choice((1, 1, 2, 3))):
        kind = random.choice((6, 12, 10, 10, 10, 10))
        values: tuple[float, ...] = HUGE if kind == 10 else FLOATS
        parts.put(random.choice(names), kind, number(kind, random.choice(values)))
    return parts.written()


def _scaling(random: Random, parts: GgufParts, content: bytes) -> bytes:
    architecture = next(key for key in parts.keys() if key.endswith(".block_count")).split(".")[0]
    prefix = f"{architecture}.rope.scaling."
    kind = random.choice((b"none", b"linear", b"yarn", b"longrope", b"\xc3\xa9", b"dynamic"))
    parts.put(prefix + "type", STRING, string(kind))
    for name in ("factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_attn_factor"):
        if random.random() < 0.5:
            parts.put(prefix + name, 6, number(6, random.choice((*FLOATS, 4.0))))
    parts.put(prefix + "original_context_length", 10, number(10, random.choice((0, 64, 1 << 63))))
    return parts.written()


def _alignment(random: Random, parts: GgufParts, content: bytes) -> bytes:
    parts.put("general.alignment", 4, number(4, random.choice((0, 1, 3, 8, 64, 1 << 20, 1 << 31))))
    return parts.written()


def _huge_metadata(random: Random, parts: GgufParts, content: bytes) -> bytes:
    kind = random.randrange(4)
    if kind == 0:
        parts.put("x" * random.choice((65_535, 65_537, 1 << 20)), 4, number(4, 1))
    elif kind == 1:
        for i in range(20_000):
            parts.values.append(parts.values[0]._replace(key=f"k{i}".encode()))
    elif kind == 2:
        parts.put("a.texts", ARRAY, texts([b""] * 100_000))
    else:
        parts.put("general.name", STRING, string(b"n" * (1 << 20)))
    return parts.written()


def _tensor(random: Random, parts: GgufParts, content: bytes) -> bytes:
    at = random.randrange(len(parts.tensors))
    found = parts.tensors[at]
    sizes = list(found.sizes)
    kind = random.randrange(7)
    if kind == 0:
        sizes[random.randrange(len(sizes))] = random.choice(HUGE)
    elif kind == 1:
        sizes = random.choice((sizes[::-1], [*sizes, 1], [1, *sizes], [1 << 32] * 2, sizes * 2))
    elif kind == 2:
        found = found._replace(kind=random.choice((*range(42), 255, (1 << 32) - 1)))
    elif kind == 3:
        found = found._replace(offset=random.choice((*HUGE, 16, 32, 64)))
    elif kind == 4:
        found = found._replace(offset=random.choice(parts.tensors).offset)
    elif kind == 5:
        names = (b"", b"x", b"blk.9.attn_q.weight", b"blk.99999999999999999999.attn_q.weight")
        more = ("blk.\u0663.attn_q.weight".encode(), b"../../x", b"\xff", b"a\nb", b"n" * 70_000)
        found = found._replace(name=random.choice((*names, *more)))
    else:
        other = random.choice(parts.tensors)
        found = found._replace(sizes=other.sizes, kind=other.kind)
        sizes = list(found.sizes)
    parts.tensors[at] = found._replace(sizes=sizes)
    return parts.written()


def _token_ids(random: Random, parts: GgufParts, content: bytes) -> bytes:
    for name in ("bos", "eos", "unknown", "padding", "eot", "eom"):
        if random.random() < 0.4:
            kind = random.choice((4, 10, 5, 6))
            values: tuple[float, ...] = {
                4: (0, 100, 101, 102, (1 << 32) - 1),
                10: HUGE,
                5: (-1, -(1 << 31), 3),
                6: FLOATS,
            }[kind]
            parts.put(f"{TOKENS}{name}_token_id", kind, number(kind, random.choice(values)))
    for flag in ("add_bos_token", "add_eos_token", "add_space_prefix"):
        if random.random() < 0.5:
            parts.put(TOKENS + flag, 7, number(7, random.random() < 0.7))
    return parts.written()


def _arrays(random: Random, parts: GgufParts, content: bytes) -> bytes:
    """Arrays of the tokenizer of other lengths than they have, or of other values."""
    size = random.choice((0, 1, 2, 100, 102, 5_000))
    kind = random.randrange(5)
    if kind == 0:
        parts.put(TOKENS + "token_type", ARRAY, numbers(5, [random.choice((1, 3))] * size))
    elif kind == 1:
        parts.put(TOKENS + "scores", ARRAY, numbers(6, [random.choice(FLOATS)] * size))
    elif kind == 2:
        words = [b"%d" % i for i in range(size)]
        parts.put(TOKENS + "tokens", ARRAY, texts(random.choice((words, [b"same"] * size))))
    elif kind == 3:
        types = [random.choice((0, 7, -5, 1 << 30, 6, 2)) for _ in range(101)]
        parts.put(TOKENS + "token_type", ARRAY, numbers(5, types))
    else:
        scores = [random.choice((*FLOATS, 1.0, -2.0)) for _ in range(101)]
        parts.put(TOKENS + "scores", ARRAY, numbers(6, scores))
    return parts.written()


def _merges(random: Random, parts: GgufParts, content: bytes) -> bytes:
    faults = (b"a zz", b"a", b"", b" ", b"a b c", b"  ", b"\xff a", b"a b", b"a  b", b"\0 \0")
    merges = [random.choice(faults) for _ in range(random.choice((1, 2, 5)))]
    parts.put(TOKENS + "merges", ARRAY, texts(merges * random.choice((1, 1, 1000))))
    return parts.written()


def _tokens(random: Random, parts: GgufParts, content: bytes) -> bytes:
    """Tokens that are long, empty, alike, or no text."""
    odd = (b"", b" ", b"   ", b"\xff", b"\0", b"a" * 100_000, b"same", "\u2581".encode(), b"\n")
    words = [b"t%d" % i for i in range(101)]
    for _ in range(random.choice((1, 3, 30))):
        words[random.randrange(101)] = random.choice(odd)
    parts.put(TOKENS + "tokens", ARRAY, texts(words))
    return parts.written()


def _template(random: Random, parts: GgufParts, content: bytes) -> bytes:
    parts.put("tokenizer.chat_template", STRING, string(random.choice(TEMPLATES)))
    return parts.written()


def _names(random: Random, parts: GgufParts, content: bytes) -> bytes:
    names = (b"", b"llama\n", b"\xff", b"mamba", b"../../x", b"q" * 5_000, b"gemma3", b"phi3")
    key, more = random.choice(
        (
            ("general.architecture", names),
            ("general.type", (b"adapter", b"", b"mmproj")),
            (TOKENS + "model", (b"", b"bert", b"llama", b"gpt2", b"no\nne")),
            (TOKENS + "pre", (b"", b"tekken", b"qwen2", b"none", b"a\nb")),
        )
    )
    parts.put(key, STRING, string(random.choice(more)))
    return parts.written()


MUTATIONS: dict[str, Mutation] = {
    each.__name__[1:]: each
    for each in (
        *(_bytes_anywhere, _bits_of_the_head, _count_in_the_head, _cut, _longer, _counts, _twice),
        *(_left_out, _another_type, _field, _scaling, _alignment, _huge_metadata, _tensor),
        *(_token_ids, _arrays, _merges, _tokens, _template, _names),
    )
}
