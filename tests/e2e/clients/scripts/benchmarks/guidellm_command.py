"""guidellm: a run of two concurrent streams of chats, and one of completions."""

import json
import os
import subprocess
import sys
from pathlib import Path

guidellm = Path(sys.executable).with_name("guidellm")
base = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
for path in ("/v1/chat/completions", "/v1/completions"):
    backend = f"kind=openai_http,target={base},model={os.environ['OPENAI_MODEL']}"
    backend += f",request_format={path},api_key={os.environ['OPENAI_API_KEY']}"
    command = [guidellm, "run", "--backend", backend, "--disable-console-interactive"]
    command += [
        "--profile",
        "kind=concurrent,streams=2",
        "--constraint",
        "kind=max_requests,count=6",
    ]
    command += ["--tokenizer", f"kind=hf_auto,model={os.environ['MODEL_FOLDER']}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16"]
    command += ["--output", "kind=json,path=report.json"]
    subprocess.run(command, check=True)
    report = json.loads(Path("report.json").read_text())
    (benchmark,) = report["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (6, 0), totals
    counts = [each["output_metrics"]["text_tokens"] for each in benchmark["requests"]["successful"]]
    assert counts == [16] * 6, counts
