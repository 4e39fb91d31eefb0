"""Builds the site of the documentation: `just docs` and `just docs-serve`.

Writes the pages, with links that fit the site, into build/docs/pages and lets Zensical make build/docs/html of them.
Fails if a page is not in the index, if a link or an anchor leads nowhere, or if a page would load something from
another host.
"""

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import dead
import outside
from pages import Repository

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGET = ROOT / "build" / "docs"
# The theme's scripts would ask these hosts for features that the site does not use: facts about a repository, diagrams,
# Python in the browser, an editor, enlarged pictures.
UNUSED_HOSTS = ("https://api.github.com/", "https://gitlab.com/", "https://unpkg.com/", "https://cdn.jsdelivr.net/")


def stage() -> None:
    """Write what the generator reads. Files that have not changed are not touched, so that `serve` stays quick."""
    repository = Repository(ROOT)
    pages = repository.pages()
    navigation = repository.navigation()
    if missing := repository.missing(navigation, pages):
        raise SystemExit("docs/README.md does not name these pages: " + ", ".join(missing))
    texts = {TARGET / "pages" / place: content.encode() for place, content in pages.items()}
    texts |= {TARGET / "pages" / repository.place(name): (ROOT / name).read_bytes() for name in repository.pictures()}
    texts |= {TARGET / path.relative_to(HERE): path.read_bytes() for path in HERE.glob("theme/**/*.*")}
    texts[TARGET / "mkdocs.yml"] = f"{(HERE / 'mkdocs.yml').read_text()}\nnav: {json.dumps(navigation)}\n".encode()
    for old in [*TARGET.glob("pages/**/*.*"), *TARGET.glob("theme/**/*.*")]:
        if old not in texts:
            old.unlink()
    for path, data in texts.items():
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def build() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    stage()
    if _zensical("build", "--strict").wait():
        raise SystemExit("a link, an anchor or a page is wrong: see above; the lines are those of build/docs/pages")
    html = TARGET / "html"
    for script in html.rglob("*.js"):
        text = script.read_text()
        for host in UNUSED_HOSTS:
            text = text.replace(host, "about:blank#")
        script.write_text(text)
    if found := outside.loads_of(html):
        raise SystemExit("the site would load from other hosts:\n" + "\n".join(found))
    if found := dead.links_of(html):
        raise SystemExit("links that lead nowhere:\n" + "\n".join(found))
    pages = len(list(html.rglob("*.html")))
    sys.stdout.write(f"{html.relative_to(ROOT)}: {pages} pages, nothing is loaded from another host\n")


def serve(*arguments: str) -> None:
    """Serve the site, and keep its pages up to date with docs/."""
    stage()
    server = _zensical("serve", *arguments)

    def follow() -> None:
        while server.poll() is None:
            time.sleep(1)
            try:
                stage()
            except SystemExit as problem:
                sys.stderr.write(f"{problem}\n")

    threading.Thread(target=follow, daemon=True).start()
    try:
        server.wait()
    except KeyboardInterrupt:
        server.terminate()
        server.wait()


def _zensical(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "zensical", *arguments], cwd=TARGET)


if __name__ == "__main__":
    build() if sys.argv[1:2] == ["build"] else serve(*sys.argv[2:])
