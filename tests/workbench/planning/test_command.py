"""`quire plan` at the command line: in words, in JSON, two plans beside each other, and refused.

Models are tiny but for their lengths, so that plans take little time.
"""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from quire.server.cli.main import main
from quire.workbench.simulation.cost.cost_file import load_cost
from tests.workbench.planning.published import LLAMA_3_8B, LLAMA_31_8B, write_config

SHORT = ("--input-tokens", "32", "--output-tokens", "8")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> str:
    small = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}
    return str(write_config(tmp_path, {**LLAMA_3_8B, **small, **heads}))


def test_a_plan_in_words(model: str, capsys: Capture) -> None:
    assert main(["plan", model, "--device", "l4", "--max-num-seqs", "16", *SHORT]) == 0
    text = capsys.readouterr().out
    for part in ("NVIDIA L4", "memory receipt of cuda", "inter-token", "16 requests run at once"):
        assert part in text
    command = text.splitlines()[-1]
    assert command.startswith(f"serve it by: quire serve {model} --max-num-seqs 16 ")
    assert "--max-model-len 8192" in command and command.count("--max-num-seqs") == 1


def test_a_plan_in_json(model: str, capsys: Capture) -> None:
    lengths = ["--input-tokens", "100", "--output-tokens", "7"]
    assert main(["plan", model, "--device", "h100", "--json", *lengths]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["weight_bytes"] > 0 and plan["facts"]["memory"]["kv_tokens"] > 8192
    bursts = [each["burst"] for each in plan["forecasts"]]
    assert [each["num_requests"] for each in bursts] == [1, 32, 128]
    assert {(each["num_input_tokens"], each["num_output_tokens"]) for each in bursts} == {(100, 7)}


@pytest.mark.long  # two plans are told in JSON in every run
def test_two_plans_beside_each_other(model: str, capsys: Capture) -> None:
    changed = "--device a100 --kv-cache-dtype fp8"
    assert main(["plan", model, "--device", "h100", "--diff", changed, *SHORT]) == 0
    text = capsys.readouterr().out
    assert "A: NVIDIA H100 SXM 80 GB, no options" in text
    assert "B: NVIDIA A100 SXM 80 GB, --kv-cache-dtype fp8" in text
    lines = (re.split(r" {2,}", line.strip()) for line in text.splitlines())
    rows = {name: cells for name, *cells in lines}
    assert rows["weights, MiB"][2] == "="
    # 2 layers of 2 heads of 64: 1,024 bytes of bfloat16, or bytes with a scale for each head
    assert rows["K and V of a token, bytes"] == ["1,024", "528", "-48.4 %"]
    assert rows["1 request: median inter-token time, ms"][2].startswith("+")


def test_two_plans_in_json(model: str, capsys: Capture) -> None:
    command = ["plan", model, "--device", "l4", "--json", "--diff", "--max-model-len 64", *SHORT]
    assert main(command) == 0
    plans = json.loads(capsys.readouterr().out)
    assert [each["facts"]["max_model_len"] for each in plans] == [8192, 64]


def test_the_built_in_cost_is_a_plan(tmp_path: Path, capsys: Capture) -> None:
    """It is written by `quire plan` of Llama 3.1 8B, and so has no figures of its own."""
    path = tmp_path / "cost.json"
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    limits = ["--max-model-len", "16384", "--max-num-seqs", "256"]
    command = ["plan", str(write_config(folder, LLAMA_31_8B)), "--device", "h100", *limits, *SHORT]
    assert main([*command, "--cost", str(path)]) == 0
    planned, built_in = load_cost(str(path)), load_cost("h100-8b")
    assert "quire serve" in capsys.readouterr().out
    assert replace(planned, model=built_in.model) == built_in


def test_a_simulation_takes_the_cost_of_a_plan(model: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "cost.json"
    assert main(["plan", model, "--device", "a100", "--cost", str(path), *SHORT]) == 0
    capsys.readouterr()
    assert main(["sim", "poisson:rate=9,requests=9,output=8", "--cost", str(path)]) == 0
    assert "NVIDIA A100" in capsys.readouterr().out


def test_a_model_that_does_not_fit_is_exit_code_1(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "small.json"
    device = {"name": "a small one", "kind": "cuda", "memory_bytes": 1 << 20}
    rates = {"bandwidth_bytes_s": 1e9, "flops_s": {"bfloat16": 1e9}}
    file.write_text(json.dumps({**device, **rates}))
    assert main(["plan", model, "--device", str(file)]) == 1
    assert "would NOT start: the weights take" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "h1000"], "--device is 'h1000', must be one of"),
        (["--device", "l4", "--block-size", "17"], "--block-size"),
        (["--device", "l4", "--max-model-len", "9000"], "made for at most 8192"),
        (["--device", "l4", "--quantization", "int8"], "--quantization int8 runs on a CPU only"),
        (["--device", "l4", "--attention-backend", "cpu"], "it runs on CPUs, not on cuda"),
        (
            ["--device", "l4", "--kv-cache-tokens", "64", "--num-gpu-blocks-override", "9"],
            "both say how large KV memory shall be",
        ),
        (["--device", "l4", "--input-tokens", "9000"], "--input-tokens 9000"),
        (["--device", "l4", "--diff=--block-size 32", "--cost", "cost.json"], "leave --diff out"),
        (["--device", "l4", "--diff=--port 80"], "--diff is '--port 80'"),
        (["--device", "l4", "--diff="], "not nothing"),
        (["--device", "l4", "--diff=--max-num-seqs"], "expected one argument"),
        (["--max-num-seq", "3"], "did you mean --max-num-seqs?"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused(
    options: list[str], said: str, model: str, capsys: Capture
) -> None:
    assert main(["plan", model, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("quire plan: ") and said in error and "Traceback" not in error


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main(["plan", str(tmp_path), "--device", "l4"]) == 2
    assert "holds no config.json" in capsys.readouterr().err


def test_the_toy_is_not_planned(capsys: Capture) -> None:
    assert main(["plan", "toy", "--device", "l4"]) == 2
    assert "the toy has no weights" in capsys.readouterr().err
