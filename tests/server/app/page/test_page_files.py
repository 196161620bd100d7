"""The text of the page's files: they load nothing from elsewhere, turn no text into HTML, and have
words for everything that the server tells."""

import re
from html.parser import HTMLParser

import pytest

from quire.server.app.page.files import INDEX, PAGE_FOLDER, read_page_files
from quire.server.cli.options import OPTIONS
from quire.server.observability.timeline_reasons import TimelinePart

TEXTS = {name: file.plain.decode() for name, file in read_page_files().items()}
MODULES = sorted(name for name in TEXTS if name.endswith(".js"))
SVG_NAMESPACE = "http://www.w3.org/2000/svg"
MAX_BYTES = 120_000


class Tags(HTMLParser):
    """The tags of a document with their attributes, and the scripts and styles written into it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style"):
            self.inline += data.strip()


def imports(module: str) -> set[str]:
    return set(re.findall(r'^import .* from "\./(.+)";$', TEXTS[module], re.MULTILINE))


def test_nothing_is_written_into_the_document() -> None:
    tags = Tags(TEXTS[INDEX])
    names = {name for _, attributes in tags.found for name in attributes}
    assert "style" not in names
    assert not {name for name in names if name.startswith("on")}
    assert tags.inline == ""


def test_every_file_is_used_and_every_used_one_is_there() -> None:
    tags = Tags(TEXTS[INDEX]).found
    folder = PAGE_FOLDER.lstrip("/") + "/"
    targets = {attributes.get("src") or attributes.get("href") or "" for _, attributes in tags}
    used = {each.removeprefix(folder) for each in targets if each.startswith(folder)}
    waiting = [name for name in used if name.endswith(".js")]
    while waiting:
        found = imports(waiting.pop()) - used
        used |= found
        waiting += found
    assert used | {INDEX} == set(TEXTS)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_other_host_is_named(name: str) -> None:
    text = TEXTS[name].replace(SVG_NAMESPACE, "")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text) == []
    assert "@import" not in text


@pytest.mark.parametrize("module", MODULES)
def test_no_text_becomes_html_or_script(module: str) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|srcdoc"
    forbidden += r"|DOMParser|createContextualFragment|EventSource|document\.cookie|setTimeout\(\""
    assert re.findall(forbidden, re.sub(r"//.*", "", TEXTS[module])) == []


def test_only_the_key_is_in_session_storage_and_only_the_colours_stay() -> None:
    users = {
        storage: [name for name in MODULES if f"{storage}." in TEXTS[name]]
        for storage in ("sessionStorage", "localStorage")
    }
    assert users == {"sessionStorage": ["keys.js"], "localStorage": ["theme.js"]}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_files_are_short(name: str) -> None:
    lines = TEXTS[name].splitlines()
    assert len(lines) <= 250
    assert max(map(len, lines)) <= 100


def test_the_whole_page_is_small() -> None:
    assert sum(len(text.encode()) for text in TEXTS.values()) < MAX_BYTES


def keys_of(table: str, text: str) -> set[str]:
    """The keys of an object that a module exports."""
    found = re.search(rf"^export const {table} = {{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return set(re.findall(r"^  (\w+):", found[1], re.MULTILINE))


def test_there_are_words_for_every_part_of_a_timeline() -> None:
    assert keys_of("PARTS", TEXTS["reasons.js"]) == set(TimelinePart)
    styled = set(re.findall(r"^\.part-(\w+)", TEXTS["tabs.css"], re.MULTILINE))
    assert styled == set(TimelinePart)


def test_the_options_that_the_page_names_are_there() -> None:
    named = {flag for name in MODULES for flag in re.findall(r"--([a-z-]+)", TEXTS[name])}
    assert len(named) > 10
    assert named <= {option.flag for option in OPTIONS}
