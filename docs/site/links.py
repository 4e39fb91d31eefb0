"""Markdown as a code host reads it: prose apart from code, links, anchors of headings, the index as a navigation.

Pure: strings come in, strings go out. `tests/architecture/test_docs_links.py` uses the same functions, so that a link
which it accepts works on the site.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_CODE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[ \t]*$|`[^`\n]+`|<!--.*?-->", re.M | re.S)
_BLOCK = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[ \t]*$|<!--.*?-->", re.M | re.S)
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s]+)(?P<after>(?: \"[^\"]*\")?\))")
_HEADING = re.compile(r"^(?P<sign>#+) (?P<text>.*\S)[ \t]*$", re.M)
_ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def _apart_from(code: re.Pattern[str], markdown: str, change: Callable[[str], str]) -> str:
    parts: list[str] = []
    at = 0
    for found in code.finditer(markdown):
        parts += [change(markdown[at : found.start()]), found[0]]
        at = found.end()
    return "".join([*parts, change(markdown[at:])])


def retargeted(markdown: str, change: Callable[[str], str]) -> str:
    """The page with `change` applied to the path of every relative link and picture; anchors and code stay."""

    def changed(link: re.Match[str]) -> str:
        path, sign, place = link["target"].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        return f"{link['before']}{change(path)}{sign}{place}{link['after']}"

    return _apart_from(_CODE, markdown, lambda prose: _LINK.sub(changed, prose))


def targets(markdown: str) -> list[str]:
    """The relative links of a page, with their anchors."""
    found: list[str] = []

    def remember(prose: str) -> str:
        found.extend(link["target"] for link in _LINK.finditer(prose))
        return prose

    _apart_from(_CODE, markdown, remember)
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def _named(headings: Iterator[str]) -> Iterator[str]:
    """The anchors that a code host gives to these headings, in their order."""
    seen: dict[str, int] = {}
    for heading in headings:
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        again = seen.get(name, 0)
        seen[name] = again + 1
        yield f"{name}-{again}" if again else name


def anchors(markdown: str) -> list[str]:
    """The names that lead to the headings of a page."""
    prose = _BLOCK.sub("", markdown)
    return list(_named(found["text"] for found in _HEADING.finditer(prose)))


def with_anchors(markdown: str) -> str:
    """The page with the name of each heading written out, so that a generator cannot choose another one."""
    names = iter(anchors(markdown))
    return _apart_from(
        _BLOCK, markdown, lambda prose: _HEADING.sub(lambda h: f"{h[0].rstrip()} {{#{next(names)}}}", prose)
    )


def navigation(index: str, expand: Callable[[str], list[Any] | str]) -> list[Any]:
    """The navigation that the index says: `## Section`, `### Part`, `- [Title](page)`.

    `expand` gets each target. It returns the page's path, or the entries of a folder.
    """
    found: list[Any] = [{"Home": "index.md"}]
    section: list[Any] = found
    entries: list[Any] = found
    for line in index.splitlines():
        if line.startswith("## "):
            section = entries = []
            found.append({line[3:].strip(): section})
        elif line.startswith("### "):
            entries = []
            section.append({line[4:].strip(): entries})
        elif entry := _ENTRY.match(line):
            target = expand(entry["target"])
            entries.extend(target if isinstance(target, list) else [{entry["title"]: target}])
    return found


def pages_in(navigation: list[Any]) -> Iterator[str]:
    for entry in navigation:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, list):
                yield from pages_in(value)
            else:
                yield value


def title_of(page: Path) -> str:
    """The first heading of a page, or its file name."""
    heading = re.search(r"^# (.+)$", page.read_text(), re.M)
    return heading[1] if heading else page.name
