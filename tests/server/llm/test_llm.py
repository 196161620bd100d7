"""`quire.LLM`: what a program gets is what the server answers, and what transformers computes."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from quire import (
    LLM,
    AsyncLLM,
    Chunk,
    InvalidOption,
    Output,
    RequestError,
    SamplingParams,
    StartError,
)
from tests.e2e.server_process import ServerProcess, server_process
from tests.models.test_bundled import FOLDER

OPTIONS = {"dtype": "float32", "kv_cache_tokens": 4096, "max_model_len": 256}
PROMPTS = ["First Citizen:", "O Romeo, Romeo!", "What is", "The king"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
MESSAGES = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(FOLDER), show_progress=False, **OPTIONS) as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    with server_process(*flags) as running:
        running.wait_ready()
        yield running


def test_greedy_texts_are_those_of_transformers(llm: LLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    for made in llm.generate(PROMPTS, GREEDY):
        ids = torch.tensor([made.prompt_token_ids])
        found = model.generate(ids, do_sample=False, max_new_tokens=12)  # type: ignore[misc]
        whole = found[0, ids.shape[1] :]
        output = made.outputs[0]
        assert list(output.token_ids) == whole.tolist()
        assert output.text == tokenizer.decode(whole, skip_special_tokens=True)


def test_texts_are_those_of_the_server(llm: LLM, server: ServerProcess) -> None:
    params = SamplingParams(temperature=0.9, seed=7, n=2, max_tokens=10, stop=["\n"], logprobs=2)
    body = {"temperature": 0.9, "seed": 7, "n": 2, "max_tokens": 10, "stop": ["\n"]}
    for prompt in PROMPTS:
        told = server.client.post("/v1/completions", json={"prompt": prompt, **body}).json()
        (made,) = llm.generate(prompt, params)
        assert [each.text for each in made.outputs] == [each["text"] for each in told["choices"]]
        ends = [each["finish_reason"] for each in told["choices"]]
        assert [each.finish_reason for each in made.outputs] == ends
        assert all(len(each.logprobs) == len(each.token_ids) for each in made.outputs)
    told = server.client.post("/v1/chat/completions", json={"messages": MESSAGES, **body}).json()
    (made,) = llm.chat(MESSAGES, params)
    assert [each.text for each in made.outputs] == [
        each["message"]["content"] for each in told["choices"]
    ]
    told = server.client.post("/v1/embeddings", json={"input": PROMPTS}).json()
    vectors = [tuple(each["embedding"]) for each in told["data"]]
    assert llm.embed(PROMPTS) == [pytest.approx(vector) for vector in vectors]


def joined(chunks: list[Chunk]) -> list[Output]:
    """The outputs that chunks make up."""
    ordered = sorted(chunks, key=lambda chunk: chunk.number)
    whole = []
    for _, group in groupby(ordered, lambda chunk: chunk.number):
        parts = list(group)
        ids = tuple(token_id for part in parts for token_id in part.token_ids)
        text = "".join(part.text for part in parts)
        whole.append(Output(text, ids, parts[-1].finish_reason or ""))
    return whole


@pytest.mark.parametrize("prompt", [PROMPTS[0], [5, 9, 2]])
def test_streamed_outputs_are_whole_ones(llm: LLM, prompt: str | list[int]) -> None:
    params = SamplingParams(temperature=0.9, seed=3, n=3, max_tokens=9)
    (made,) = llm.generate(prompt, params)
    whole = [each._replace(stop_reason=None) for each in made.outputs]
    assert joined(list(llm.stream(prompt, params))) == whole


def test_a_streamed_chat_is_a_whole_one(llm: LLM) -> None:
    (made,) = llm.chat(MESSAGES, GREEDY)
    assert joined(list(llm.stream(MESSAGES, GREEDY)))[0].text == made.text


def test_a_stream_that_is_left_ends_its_request(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    stream.close()
    (made,) = llm.generate(PROMPTS[0], GREEDY)
    assert made.num_cached_tokens < len(made.prompt_token_ids)


def test_threads_and_more_prompts_than_run_at_once_are_answered(llm: LLM) -> None:
    expected = [made.text for made in llm.generate(PROMPTS, GREEDY)]
    found: list[list[str]] = []

    def ask() -> None:
        found.append([made.text for made in llm.generate(PROMPTS * 40, GREEDY)])

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected * 40] * 2


def test_what_is_wrong_is_said_by_field(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="'top_p'") as caught:
        llm.generate([PROMPTS[0], PROMPTS[1]], SamplingParams(top_p=3.0))
    assert caught.value.param == "top_p"
    with pytest.raises(RequestError, match="context"):
        llm.generate("king " * 300, GREEDY)
    with pytest.raises(InvalidOption, match="port is no option of a model"):
        LLM(str(FOLDER), port=1)
    with pytest.raises(InvalidOption, match="--max-model-len"):
        LLM(str(FOLDER), max_model_len="many")
    with pytest.raises(StartError, match="there is no such folder"):
        LLM(str(tmp_path / "none"), show_progress=False)


PROGRAM = """
from quire import LLM, SamplingParams
{guard}
    with LLM({folder!r}, dtype="float32", kv_cache_tokens=4096) as llm:
        try:
            print(llm.generate([5] * 50_000))
        except Exception as error:
            print(error)
"""


@pytest.mark.parametrize(
    ("guard", "said"),
    [("if __name__ == '__main__':", "has 50000: no room"), ("if True:", "under `if __name__ ==")],
)
def test_a_program_that_runs_anew_in_a_worker_is_told(
    tmp_path: Path, guard: str, said: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(guard=guard, folder=str(FOLDER)))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=True
    )
    assert said in done.stdout


@pytest.mark.anyio
async def test_coroutines_do_the_same(llm: LLM) -> None:
    expected = [made.text for made in await asyncio.to_thread(llm.generate, PROMPTS, GREEDY)]
    phases: list[str] = []
    model = AsyncLLM(str(FOLDER), **OPTIONS)
    await model.open(lambda phase, done, total: phases.append(phase))
    try:
        made = await asyncio.gather(*(model.generate(each, GREEDY) for each in PROMPTS))
        assert [each.text for each in made] == expected
        chunks = [chunk async for chunk in model.stream(PROMPTS[0], GREEDY)]
        assert joined(chunks)[0].text == expected[0]
        assert phases
    finally:
        await model.close()
    with pytest.raises(StartError, match="not open"):
        await model.generate("a")
