"""Schemas that zod writes for its types are taken. `zod_schemas.json` holds what `z.toJSONSchema`
of the version named in it (MIT) gives for each of them, for both drafts, as input and as output.
"""

import json
from pathlib import Path

import jsonschema
import pytest

from tests.server.grammars.matching import matcher
from tests.server.grammars.sampling import grammar_of, written

ZOD = json.loads((Path(__file__).parent / "zod_schemas.json").read_text(encoding="utf-8"))
LOOSENED = {"hostname": "f.pattern", "emoji": "f.pattern"}
"""Types whose patterns look around."""


def test_all_types_are_there() -> None:
    assert ZOD["version"].startswith("4.") and len(ZOD["types"]) > 90


@pytest.mark.parametrize("name", ZOD["types"])
def test_a_type_of_zod_is_taken_and_what_is_written_is_valid(name: str) -> None:
    for schema in ZOD["types"][name]:
        grammar, loosened = grammar_of(schema)
        matcher(grammar)
        assert loosened == ((LOOSENED[name],) if name in LOOSENED else ())
        if not loosened:
            validator = jsonschema.validators.validator_for(schema)(schema)
            for seed in range(3):
                for value in written(grammar, seed):
                    validator.validate(value)
