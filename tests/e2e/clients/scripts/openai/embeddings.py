"""openai, embeddings: one text, several, as floats and as the client's own base64."""

import math
import os

from openai import OpenAI

MODEL = os.environ["OPENAI_MODEL"]
client = OpenAI()

one = client.embeddings.create(model=MODEL, input="Once upon a time")
assert one.usage.prompt_tokens > 0
vector = one.data[0].embedding
assert math.isclose(math.hypot(*vector), 1, abs_tol=1e-3)

several = client.embeddings.create(
    model=MODEL, input=["Once upon a time", "there was a king"], encoding_format="float"
)
assert [each.index for each in several.data] == [0, 1]
pairs = zip(several.data[0].embedding, vector, strict=True)
assert all(math.isclose(a, b, abs_tol=1e-2) for a, b in pairs)
