"""The pages of the documentation lead to pages and headings that exist, and the index leads to all of them.

`just docs` checks the same on the built site, with the functions of docs/site that are tested here.
"""

from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from docs.site import dead, links, outside
from tests.support.dashboard_screens import self_contained

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("alembic/*.md")]


@cache
def _anchors(page: Path) -> set[str]:
    return set(links.anchors(page.read_text()))


def _links(page: Path) -> list[str]:
    return links.targets(page.read_text())


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


def test_headings_have_the_anchors_of_a_code_host() -> None:
    page = "# A `code` heading: it's [linked](x.md)\n## Twice\n```sh\n# no heading\n```\n## Twice\n<!--\n## gone -->\n"
    assert links.anchors(page) == ["a-code-heading-its-linked", "twice", "twice-1"]
    assert links.with_anchors("## Twice\n```sh\n# no\n```\n## Twice") == (
        "## Twice {#twice}\n```sh\n# no\n```\n## Twice {#twice-1}"
    )


def test_links_in_code_and_comments_stay() -> None:
    page = "[a](b.md#c) `[a](b.md)` [x](https://x.org/y)\n```md\n[a](b.md)\n```\n![p](q.svg)<!-- [a](b.md) -->"
    assert links.retargeted(page, lambda path: f"../{path}") == (
        "[a](../b.md#c) `[a](b.md)` [x](https://x.org/y)\n```md\n[a](b.md)\n```\n![p](../q.svg)<!-- [a](b.md) -->"
    )
    assert links.targets(page) == ["b.md#c", "q.svg"]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".html", '<script async src="https://cdn.example/a.js"></script>'),
        (".html", '<link rel="stylesheet" href="//fonts.example/css">'),
        (".html", "<img alt=x src=https://img.example/a.png>"),
        (".html", "<style>body { background: url('https://img.example/a.png') }</style>"),
        (".css", '@import "https://fonts.example/css";'),
        (".css", "src: local('x'), url(https://fonts.example/x.woff2)"),
        (".svg", '<image xlink:href="https://img.example/a.png"/>'),
        (".js", 'load("https://cdn.example/library.js")'),
    ],
)
def test_a_load_from_another_host_is_found(suffix: str, text: str) -> None:
    assert len(list(outside.loads(text, suffix))) == 1


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (
            ".html",
            '<a href="https://example.org">x</a> <script src="../a.js"></script> <link rel="canonical" href="https://x">',
        ),
        (".svg", '<svg xmlns="http://www.w3.org/2000/svg"><use href="#a"/></svg>'),
        (".css", "/* https://fontawesome.com url(https://x) */ a { background: url(data:image/svg+xml,<svg/>) }"),
        (".js", '/* https://clipboardjs.com */ create("http://www.w3.org/2000/svg")'),
    ],
)
def test_links_comments_and_namespaces_are_no_loads(suffix: str, text: str) -> None:
    assert list(outside.loads(text, suffix)) == []


def test_dead_links_of_built_pages_are_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").write_text('<h1 id="here">x</h1>')
    (tmp_path / "a.html").write_text(
        '<a href="folder/#here"></a> <a href="folder/#gone"></a> <a href="b.html">b</a> <a href="https://x.org/"></a>'
        '<img src="folder/p.svg"> <a href="#top"></a> <p id="top"></p>'
    )
    assert dead.links_of(tmp_path) == ["a.html: b.html", "a.html: folder/#gone", "a.html: folder/p.svg"]


def test_no_committed_picture_loads_anything() -> None:
    """The export of Textual and Rich fetches a font; tests/support/dashboard_screens.py takes that out."""
    pictures = [*DOCS.rglob("*.svg")]
    assert len(pictures) >= 10
    assert {
        str(picture): found for picture in pictures if (found := [*outside.loads(picture.read_text(), ".svg")])
    } == {}
    assert [picture for picture in pictures if "@font-face" in picture.read_text()] == []


def test_an_exported_screen_becomes_self_contained() -> None:
    exported = Console(record=True, file=StringIO(), width=20)
    exported.print("horsies")
    svg = exported.export_svg(title="x")
    assert [*outside.loads(svg, ".svg")]
    assert [*outside.loads(self_contained(svg), ".svg")] == []
    assert "monospace" in self_contained(svg)
