"""Reads prompt prefixes that the operator makes public."""

from pathlib import Path

from quire.server.apis.openai.messages import messages_of
from quire.server.apis.protocol.chat import Message
from quire.server.apis.protocol.fields import StrictModel
from quire.server.apis.protocol.parse import validate
from quire.server.errors import RequestError
from quire.server.http.json_object import parse_object
from quire.server.models.shared_prefixes import SharedPrefixError, SharedPrefixes
from quire.server.text.chat_template import TemplateRefused
from quire.server.text.tokenizer import TextTokenizer


class _Line(StrictModel):
    text: str | None = None
    messages: list[Message] | None = None


def load_shared_prefixes(path: str, tokenizer: TextTokenizer) -> SharedPrefixes:
    """Read the file of prefixes. Raises SharedPrefixError."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SharedPrefixError(f"--shared-prefix-file: cannot read {path}: {error}") from None
    prefixes = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prefixes.append(_read(line, tokenizer))
        except (RequestError, TemplateRefused, ValueError) as error:
            message = f"--shared-prefix-file: {path} line {number}: {error}"
            raise SharedPrefixError(message) from None
    return SharedPrefixes(prefixes)


def _read(line: str, tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return the tokens of one line, made as those of requests are: a chat template writes all
    special tokens itself."""
    given = validate(parse_object(line.encode(), "The line"), _Line)
    if (given.text is None) == (given.messages is None):
        raise ValueError("one of 'text' and 'messages' is wanted")
    if given.messages is not None:
        text = _render(given.messages, tokenizer)
        token_ids = tokenizer.encode(text, add_special_tokens=False)
    else:
        token_ids = tokenizer.encode(given.text or "", add_special_tokens=True)
    if not token_ids:
        raise ValueError("it has no tokens")
    return token_ids


def _render(messages: list[Message], tokenizer: TextTokenizer) -> str:
    if tokenizer.template is None:
        raise ValueError("the model has no chat template for 'messages'")
    return tokenizer.template.render(
        [message.as_template_message() for message in messages_of(messages)],
        add_generation_prompt=False,
        continue_final_message=False,
        extra={},
    )
