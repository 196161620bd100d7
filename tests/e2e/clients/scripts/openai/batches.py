"""openai, files and batches: upload, create, wait, read the answers, delete."""

import io
import json
import os
import time

from openai import OpenAI

MODEL = os.environ["OPENAI_MODEL"]
client = OpenAI()

lines = [
    {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{number} lords"}],
            "max_tokens": 8,
        },
    }
    for number in range(5)
]
content = "\n".join(map(json.dumps, lines)).encode()
file = client.files.create(file=("lines.jsonl", io.BytesIO(content)), purpose="batch")
assert client.files.retrieve(file.id).bytes == len(content)

batch = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
)
for _ in range(120):
    batch = client.batches.retrieve(batch.id)
    if batch.status in ("completed", "failed", "expired", "cancelled"):
        break
    time.sleep(0.5)
assert batch.status == "completed", batch
assert batch.request_counts.completed == 5
answers = [
    json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()
]
assert {each["custom_id"] for each in answers} == {each["custom_id"] for each in lines}
assert all(each["response"]["body"]["choices"] for each in answers)
assert batch.id in [each.id for each in client.batches.list()]
assert client.files.delete(file.id).deleted
