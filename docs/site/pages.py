"""The pages of the site, made from files of the repository.

The documentation is written for a code host: pages link to folders, to programs of docs/examples and to files outside
docs/. Here each such file becomes a page `repository/...` that shows it, and each folder a page that lists it.
"""

import posixpath
import re
import subprocess
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import links

LANGUAGES = {
    ".py": "python", ".sql": "sql", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".ini": "ini",
    ".sh": "sh", ".service": "ini", ".html": "html", ".conf": "ini", ".rules": "yaml",
}  # fmt: skip
PICTURES = (".svg", ".png")
LISTED_APART = ("docs/decisions",)
"""Folders whose pages are all in the navigation."""
NOT_LISTED = ("docs/site/",)
SHOWN_BYTES = 300_000
LISTED_FILES = 150


class Repository:
    """The files of one checkout, and the page of the site that shows each."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> set[str]:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        asked = subprocess.run(command, cwd=self.root, check=False, capture_output=True, text=True)
        if asked.returncode == 0:
            return {name for name in asked.stdout.splitlines() if (self.root / name).is_file()}
        ignored = {".git", "build", "dist", "__pycache__"}  # an archive without git
        return {
            path.relative_to(self.root).as_posix()
            for path in self.root.rglob("*")
            if path.is_file() and not any(part in ignored or part.startswith(".venv") for part in path.parts)
        }

    def pages(self) -> dict[str, str]:
        """All pages by their place on the site: those of docs/, and what these and the others link to."""
        found: dict[str, str] = {}
        waiting = [
            name
            for name in self.files
            if name.startswith("docs/") and name.endswith(".md") and not name.startswith(NOT_LISTED)
        ]
        while waiting:
            target = waiting.pop()
            place = self.place(target)
            if place in found:
                continue
            content, base = self._content(target)
            found[place] = self._moved(content, base, place)
            waiting += [
                path
                for link in links.targets(content)
                if (path := _joined(base, link.partition("#")[0])) and self._exists(path) and not _is_picture(path)
            ]
        return found

    def pictures(self) -> list[str]:
        return [name for name in self.files if name.startswith("docs/") and _is_picture(name)]

    def navigation(self) -> list[Any]:
        return links.navigation((self.root / "docs/README.md").read_text(), self._entries)

    def missing(self, navigation: Iterable[Any], pages: Iterable[str]) -> list[str]:
        """Pages of docs/ that the navigation does not name. Examples are reached from their own index."""
        named = set(links.pages_in(list(navigation)))
        return sorted(
            page
            for page in pages
            if page not in named
            and not page.startswith(("repository/", "examples/"))
            and not (page.endswith("/index.md") and f"docs/{page.removesuffix('index.md')}README.md" not in self.files)
        )

    def place(self, target: str) -> str:
        """Where the site shows this file or folder of the repository."""
        if target == "CHANGELOG.md":
            return "changelog.md"
        inside = target.removeprefix("docs/") if target.startswith("docs/") else f"repository/{target}"
        if target == "docs":
            return "index.md"
        if (self.root / target).is_dir():
            return f"{inside}/index.md"
        if _is_picture(target):
            return inside
        if target.endswith(".md"):
            folder, _, name = inside.rpartition("/")
            return f"{folder}/index.md".lstrip("/") if name == "README.md" else inside
        return f"repository/{target}.md"

    def _entries(self, target: str) -> list[Any] | str:
        path = _joined("docs/README.md", target)
        if path not in LISTED_APART:
            return self.place(path)
        listed = sorted((self.root / path).glob("*.md"))
        return [
            {"All decisions": self.place(path)},
            *({_numbered(page): self.place(f"{path}/{page.name}")} for page in listed),
        ]

    def _exists(self, path: str) -> bool:
        return path in self.files or (self.root / path).is_dir()

    def _moved(self, content: str, base: str, place: str) -> str:
        """The page with links from its place on the site; a link that leads nowhere stays, and the build refuses it."""

        def retarget(path: str) -> str:
            target = _joined(base, path)
            if not self._exists(target):
                return path
            return posixpath.relpath(self.place(target), posixpath.dirname(place) or ".")

        return links.with_anchors(links.retargeted(content, retarget))

    def _content(self, target: str) -> tuple[str, str]:
        """The text of a page, and the file of the repository from which its links start."""
        path = self.root / target
        if path.is_dir():
            readme = f"{target}/README.md"
            return (self._content(readme)[0], readme) if readme in self.files else (self._listing(target), "here")
        if target == "CHANGELOG.md":  # it names pages in parentheses
            return re.sub(r"(?<!\])\((docs/[\w/.-]+\.md)\)", r"([\1](\1))", path.read_text()), target
        if path.suffix == ".md":
            return path.read_text(), target
        size = path.stat().st_size
        try:
            text = path.read_text() if size <= SHOWN_BYTES else None
        except UnicodeDecodeError:
            text = None
        head = f"# {path.name}\n\n`{target}` of the repository.\n\n"
        if text is None:
            return f"{head}It has {size:,} bytes, and is not shown here.\n", "here"
        fence = "````" if "```" in text else "```"
        return f"{head}{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n{fence}\n", "here"

    def _listing(self, target: str) -> str:
        inside = sorted(name for name in self.files if name.startswith(f"{target}/"))
        if target in LISTED_APART:
            title = target.rpartition("/")[2].capitalize()
            return "\n".join([f"# {title}", "", *(f"- [{_numbered(self.root / name)}]({name})" for name in inside), ""])
        head = f"# {target}/\n\n`{target}/` of the repository has {len(inside)} files.\n\n"
        if len(inside) > LISTED_FILES:
            return head
        return head + "\n".join(f"- [`{posixpath.relpath(name, target)}`]({name})" for name in inside) + "\n"


def _is_picture(path: str) -> bool:
    return path.startswith("docs/") and path.endswith(PICTURES)


def _joined(base: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), path))


def _numbered(decision: Path) -> str:
    """The title of a decision with its number."""
    title, number = links.title_of(decision), decision.name[:4]
    return title if title.startswith(number) else f"{number}: {title}"
