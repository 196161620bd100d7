"""Where a client says nothing, `generation_config.json` does; a client's word beats it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.engine.grammar.tokenizer_facts import TokenizerError
from quire.server.models.sampling_defaults import SamplingDefaults, load_sampling_defaults
from tests.server.served import BUNDLED, Served, plain_config, serving


def checkpoint(folder: Path, stated: object) -> str:
    shutil.copy(Path(BUNDLED) / "tokenizer.json", folder)
    (folder / "generation_config.json").write_text(json.dumps(stated))
    return str(folder)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    stated = {"temperature": 0.25, "top_k": 7, "do_sample": False, "max_new_tokens": 3}
    with serving(plain_config(checkpoint(tmp_path, stated))) as running:
        yield running


def test_the_file_fills_in_what_the_client_leaves_out(served: Served) -> None:
    served.complete(prompt="x", max_tokens=1)
    sampling = served.engine.submitted[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.25, 7, 1.0)
    served.complete(prompt="x", max_tokens=1, temperature=1.5, top_k=-1)
    sampling = served.engine.submitted[-1].sampling
    assert (sampling.temperature, sampling.top_k) == (1.5, 0)
    shown = served.client.get("/v1/server_info").json()["sampling_defaults"]
    assert shown == {"temperature": 0.25, "top_k": 7}


def test_no_file_states_nothing(tmp_path: Path) -> None:
    shutil.copy(Path(BUNDLED) / "tokenizer.json", tmp_path)
    assert load_sampling_defaults(str(tmp_path), None) == SamplingDefaults()


@pytest.mark.parametrize("stated", [{"top_p": 0}, {"temperature": "hot"}, {"min_p": 2}, []])
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, stated: object) -> None:
    with pytest.raises(TokenizerError, match="generation_config.json"):
        load_sampling_defaults(checkpoint(tmp_path, stated), None)
