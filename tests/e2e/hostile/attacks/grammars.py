"""Attacks by grammars: schemas and expressions that are small to say and large to compile, and
masks that are slow to compute."""

from collections.abc import Callable, Sequence

from tests.e2e.hostile.target import Attack, Target

COMPLETIONS = "/v1/completions"
ANSWERED = ("200", "400", "503", "429")


def under(field: str, value: object, max_tokens: int = 8) -> dict[str, object]:
    """Return a completion under a grammar."""
    return {"prompt": "x", "max_tokens": max_tokens, field: value}


def all_of(bodies: Sequence[dict[str, object]], num: int = 4) -> Callable[[Target], None]:
    """Return an attack that posts each of the bodies so many times, on eight connections. No two
    of them are equal, since what was compiled once is kept."""

    def run(target: Target) -> None:
        said = [body | {"prompt": f"x{index}"} for index in range(num) for body in bodies]
        target.together([lambda body=body: target.post(COMPLETIONS, body) for body in said], 8)  # type: ignore[misc]

    return run


def referring(num: int, keyword: str) -> dict[str, object]:
    """Return a schema of `num` definitions, each of which refers twice to the next."""
    defs: dict[str, object] = {
        f"d{index}": {
            keyword: [{"$ref": f"#/$defs/d{index + 1}"}, {"$ref": f"#/$defs/d{index + 1}"}]
        }
        for index in range(num)
    }
    return {"$defs": defs | {f"d{num}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}, "required": ["a"]}
    return schema


def either(num: int) -> dict[str, object]:
    """Return a schema of so many kinds of objects that differ in their last key."""
    kinds = [
        {
            "type": "object",
            "properties": {"kind": {"type": "string"}, "name": {}, f"key{index}": {}},
            "required": ["kind", "name", f"key{index}"],
        }
        for index in range(num)
    ]
    return {"anyOf": kinds}


SCHEMAS = (
    referring(60, "allOf"),
    referring(60, "anyOf"),
    referring(60, "oneOf"),
    nested(12),
    either(400),
    {"enum": [f"{index}" * 20 for index in range(2000)]},
    {"type": "string", "maxLength": 1_000_000},
    {"type": "array", "minItems": 100_000, "items": {"type": "string", "format": "email"}},
    {"type": "string", "allOf": [{"pattern": f"^(.*{letter}){{20}}$"} for letter in "abcdefgh"]},
    {"type": "integer", "multipleOf": 999_983},
    {"type": "object", "patternProperties": {f"^{'a?' * i}$": {} for i in range(1, 60)}},
)
EXPRESSIONS = (
    "x{50000}",
    "(x{1,300}){1,300}",
    "(a|aa|aaa|aaaa){1,5000}b",
    "(.*a){40}",
    "(a?){500}a{500}",
    "([a-z]*[0-9]*){200}",
    r"(\p{L}|\p{N}){1,3000}\p{Greek}{9,900}",
    "(" + "|".join(f"(.*{index}.*)" for index in range(300)) + ")",
    "[^a]*a.{500}",
    "(" * 400 + "a" + ")*" * 400,
)
SLOW = (
    under("guided_regex", "[^a]*a.{12}(.*b.{9}){4}", 200),
    under("guided_regex", "(.{0,30}[aeiou].{0,30}){12}", 200),
    under("guided_json", {"type": "string", "pattern": "^(.*[a-z].*){6}$"}, 200),
    under("guided_json", {"type": "array", "items": either(20), "minItems": 20}, 200),
)


def gbnf(num_bytes: int) -> str:
    """Return a grammar in GBNF of about so many bytes, whose rules are as short as they can be."""
    rules, size = ["root ::= a0"], 0
    while size < num_bytes:
        rules.append(f'a{len(rules) - 1} ::= "x" | a{len(rules)}')
        size += len(rules[-1]) + 1
    return "\n".join((*rules, f'a{len(rules) - 1} ::= "x"'))


def literals(target: Target) -> None:
    """Ask for outputs that are forced, as long as they may be."""
    for num in (1_000, 30_000, 100_000, 1_000_000):
        choice = under("guided_choice", [chr(0x61 + num % 26) * num], 2000)
        target.together([lambda body=choice: target.post(COMPLETIONS, body)] * 4)  # type: ignore[misc]
        target.post(COMPLETIONS, under("guided_json", {"const": "a b " * (num // 4)}, 2000))


ATTACKS = (
    Attack(
        "exploding schemas",
        "11 JSON schemas, four times each",
        ANSWERED,
        all_of([under("guided_json", schema) for schema in SCHEMAS]),
        120,
    ),
    Attack(
        "exploding expressions",
        "10 regular expressions, four times each",
        ANSWERED,
        all_of([under("guided_regex", each) for each in EXPRESSIONS]),
        120,
    ),
    Attack(
        "grammars in GBNF",
        "of 3.5, 15 and 60 kB, eight times each",
        ANSWERED,
        all_of([under("guided_grammar", gbnf(size)) for size in (3500, 15_000, 60_000)], 8),
        120,
    ),
    Attack("forced literals", "of 1 kB to 1 MB, five times each", ANSWERED, literals, 120),
    Attack(
        "slow masks",
        "4 grammars, four times each, 200 tokens",
        (*ANSWERED, "500 grammar_failed"),
        all_of(SLOW),
        120,
    ),
)
