"""The options of a chat take what the API takes, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.protocol.fields import GenerationFields
from quire.server.apis.protocol.parse import validate
from quire.server.cli.terminal.chat import SAMPLING
from quire.server.errors import RequestError
from quire.workbench.terminal.sampling_options import WrongOption, rules_of_schema

RULES = rules_of_schema(GenerationFields.model_json_schema(), SAMPLING)
NUMBERS = (
    st.integers(-(2**64), 2**64)
    | st.integers(-3, 3)
    | st.floats(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.01, 0.0, 1.0, 2.0, -2.0, 100.0, 100.1, 1e-300])
)


def api_takes(name: str, number: float) -> bool:
    try:
        validate({name: number}, GenerationFields)
    except RequestError:
        return False
    return True


@given(st.sampled_from(SAMPLING), NUMBERS)
def test_an_option_takes_what_the_api_takes(name: str, number: float) -> None:
    rule = RULES.rules[name]
    given = int(number) if rule.is_whole else float(number)
    assert (rule.read(str(given)) == given) is api_takes(name, given)
    assert (rule.read(str(given)) is None) is not api_takes(name, given)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-inf", "warm", "1e999", "0x1", "9" * 5000])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(WrongOption, match="temperature is a number of at least 0 and at most 2"):
        RULES.read("temperature", text)


def test_refusals_say_what_would_be_right() -> None:
    with pytest.raises(WrongOption, match="top_p is a number above 0 and at most 1, not '0'"):
        RULES.read("top_p", "0")
    with pytest.raises(WrongOption, match="max_tokens is a whole number of at least 0, not '1.5'"):
        RULES.read("max_tokens", "1.5")
    with pytest.raises(WrongOption, match="no option 'temp'; there are max_tokens, temperature"):
        RULES.read("temp", "1")
