"""Messages of the system in chat templates that want one of them, first, or none at all.

A template that shows the conversation as it is gets it as it is. To another the messages of the
system at the beginning are one, and later ones are words of the user that say whose they are; a
template that has no place for the system at all has the first ones as words of the user too.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from quire.server.text.chat_template import ChatMessage, TemplateRefused

Render: TypeAlias = Callable[[Sequence[ChatMessage]], str]
GAP = "\n\n"
MIN_COUNTED_CHARS = 16
"""Shorter texts may be words of the template itself: to count them says nothing."""
MAX_COUNTED = 8
"""Messages of the system whose texts are counted: each is looked for in all of the prompt."""
_PROBE = "QUIRE_SYSTEM_TURN_"
_PROBES = re.compile(f"{_PROBE}[0-9]+_(?:BEGINS|ENDS)")


class SystemPlace(StrEnum):
    """The places that a conversation's messages of the system have in its prompt, each in a
    sentence for the server's log where it is not the client's."""

    AS_GIVEN = ""
    JOINED = (
        "the chat template takes one system message: those at the beginning are joined by a blank "
        "line"
    )
    LATER_AS_USER = (
        "the chat template takes no system message after the first turn: such are shown as turns "
        "of the user, within <system-reminder>"
    )
    ALL_AS_USER = (
        "the chat template takes no system message: they are shown as turns of the user, within "
        "<system-reminder>"
    )


class RenderedTurns(NamedTuple):
    """A conversation as the template has written it, and the place of the system's messages."""

    text: str
    place: SystemPlace


def render_turns(messages: Sequence[ChatMessage], render: Render) -> RenderedTurns:
    """Return a conversation as the template writes it by `render`, with the text of each message of
    the system. Raises TemplateRefused where no way shows it all: with the template's own words if
    it has refused the conversation as it is."""
    if not any(map(_is_system, messages)):
        return RenderedTurns(render(messages), SystemPlace.AS_GIVEN)
    refusal: TemplateRefused | None = None
    for place in _places(messages):
        try:
            arranged = _arrange(messages, place)
            text = render(arranged)
            if _counts_all(arranged, messages, text) or _shows_probes(messages, place, render):
                return RenderedTurns(text, place)
        except TemplateRefused as error:
            refusal = refusal or error
    raise refusal or TemplateRefused("the template does not show the system's messages")


def _places(messages: Sequence[ChatMessage]) -> Iterator[SystemPlace]:
    """Yield the places that the system's messages may have, each with one liberty more."""
    yield SystemPlace.AS_GIVEN
    num_leading = sum(1 for _ in takewhile(_is_system, messages))
    if num_leading > 1:
        yield SystemPlace.JOINED
    if any(map(_is_system, messages[num_leading:])):
        yield SystemPlace.LATER_AS_USER
    yield SystemPlace.ALL_AS_USER


def _arrange(messages: Sequence[ChatMessage], place: SystemPlace) -> Sequence[ChatMessage]:
    """Return a conversation with the system's messages at their place."""
    if place is SystemPlace.AS_GIVEN:
        return messages
    leading = [*takewhile(_is_system, messages)]
    later = messages[len(leading) :]
    joined = _joined(leading)
    if place is SystemPlace.JOINED:
        return [*joined, *later]
    if place is SystemPlace.LATER_AS_USER:
        return [*joined, *_as_user(later)]
    return _as_user([*joined, *later])


def _is_system(message: ChatMessage) -> bool:
    return message["role"] == "system"


def _joined(leading: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages of the system as one, none where there is none."""
    if len(leading) < 2:
        return [*leading]
    texts = (str(each["content"]) for each in leading)
    return [{**leading[0], "content": GAP.join(text for text in texts if text)}]


def _as_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return a conversation with the system's messages within the user's beside them, since many
    templates want roles to alternate, or as messages of the user."""
    turns: list[_UserTurn] = []
    for message in messages:
        is_system = _is_system(message)
        turn = {"role": "user", "content": _marked(message)} if is_system else message
        last = turns[-1] if turns else None
        is_joined = last is not None and last.message["role"] == turn["role"] == "user"
        if last is None or not is_joined or not (is_system or last.awaits_user):
            turns.append(_UserTurn(turn, [str(turn["content"])], is_system))
            continue
        last.texts.append(str(turn["content"]))
        if not is_system:
            last.message, last.awaits_user = turn, False
    return [turn.joined() for turn in turns]


@dataclass(slots=True)
class _UserTurn:
    """A turn in the making, with its texts. One that is the system's alone `awaits_user`: the
    user's next message is one with it."""

    message: ChatMessage
    texts: list[str]
    awaits_user: bool

    def joined(self) -> ChatMessage:
        """Return the turn as one message."""
        if len(self.texts) == 1:
            return self.message
        return {**self.message, "content": GAP.join(self.texts)}


def _marked(message: ChatMessage) -> str:
    return f"<system-reminder>\n{message['content']}\n</system-reminder>"


def _counts_all(
    arranged: Sequence[ChatMessage], messages: Sequence[ChatMessage], text: str
) -> bool:
    """Return whether a prompt has the text of each of the system's messages as often as the
    conversation, which says that they are shown. Where it does not, the template may have changed
    them."""
    systems = {str(each["content"]).strip() for each in messages if _is_system(each)}
    if len(systems) > MAX_COUNTED or any(len(each) < MIN_COUNTED_CHARS for each in systems):
        return False
    contents = [str(each["content"]) for each in arranged]
    return all(text.count(each) >= sum(said.count(each) for said in contents) for each in systems)


def _shows_probes(messages: Sequence[ChatMessage], place: SystemPlace, render: Render) -> bool:
    """Return whether words around the text of each of the system's messages are shown. Raises
    TemplateRefused."""
    probed: list[ChatMessage] = []
    probes: set[str] = set()
    for number, message in enumerate(messages):
        if not _is_system(message):
            probed.append(message)
            continue
        begins, ends = (f"{_PROBE}{number}_{end}" for end in ("BEGINS", "ENDS"))
        probed.append({**message, "content": f"{begins} {message['content']} {ends}"})
        probes |= {begins, ends}
    return probes <= {*_PROBES.findall(render(_arrange(probed, place)))}
