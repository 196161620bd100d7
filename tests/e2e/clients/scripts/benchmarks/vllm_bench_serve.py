"""vLLM's `bench serve`: random prompts to completions and to chats."""

import argparse
import json
import os
from pathlib import Path

from vllm.benchmarks.serve import add_cli_args, main

base = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
for backend, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    where = ["--backend", backend, "--base-url", base, "--endpoint", path]
    model = ["--model", os.environ["OPENAI_MODEL"], "--tokenizer", os.environ["MODEL_FOLDER"]]
    load = ["--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "16"]
    size = ["--num-prompts", "8", "--max-concurrency", "4", "--ignore-eos"]
    kept = ["--save-result", "--result-filename", "result.json"]
    main(parser.parse_args([*where, *model, *load, *size, *kept]))
    result = json.loads(Path("result.json").read_text())
    assert result["completed"] == 8
    assert result["failed"] == 0
    assert result["total_output_tokens"] == 8 * 16
