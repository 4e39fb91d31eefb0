"""The pages of the documentation lead to pages and headings that exist, and the index leads to all of them."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("packages/*/README.md")]


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


@cache
def _anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", _prose(page), re.M):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        again = sum(1 for one in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", one))
        found.add(f"{name}-{again}" if again else name)
    return found


def _links(page: Path) -> list[str]:
    shown = re.sub(r"`[^`\n]*`", "", _prose(page))
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", shown) if not re.match(r"[a-z]+:", link)]


def test_every_link_leads_somewhere() -> None:
    dead: list[str] = []
    for page in PAGES:
        for link in _links(page):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []


def test_the_index_has_every_page_once() -> None:
    links = _links(DOCS / "README.md")
    assert len(links) == len(set(links))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"README.md"}
    assert {page for page in pages if not page.startswith(("decisions/", "examples/"))} <= set(links)
