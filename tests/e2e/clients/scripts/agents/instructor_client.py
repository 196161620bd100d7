"""instructor: modes TOOLS and JSON_SCHEMA, a list, and a partial stream."""

import os
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel


class User(BaseModel):
    name: str
    age: int
    role: Literal["admin", "guest"]


MODEL = os.environ["OPENAI_MODEL"]
MESSAGES = [{"role": "user", "content": "Jason is 25 years old and an admin."}]

for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(OpenAI(), mode=mode)
    user = client.chat.completions.create(model=MODEL, response_model=User, messages=MESSAGES)
    assert isinstance(user, User), mode
    *_, last = client.chat.completions.create_partial(
        model=MODEL, response_model=User, messages=MESSAGES
    )
    assert last.role in ("admin", "guest"), mode
