"""Find links of built pages that lead to no file or to no place in it. A generator's own check leaves some out."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag

_TARGET = re.compile(r"<[a-z]+\b[^>]*?\s(?:href|src)=(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))", re.I)
_NAME = re.compile(r"\s(?:id|name)=(?:\"([^\"]*)\"|([^\s>\"']+))", re.I)


def links_of(folder: Path) -> list[str]:
    """Every dead link inside a built site, as `page: link`."""

    @cache
    def names(page: Path) -> set[str]:
        return {one or other for one, other in _NAME.findall(page.read_text())}

    dead: list[str] = []
    for page in sorted(folder.rglob("*.html")):
        if page == folder / "404.html":
            continue  # its links start at the root of the host
        for target in {"".join(found) for found in _TARGET.findall(page.read_text())}:
            path, place = urldefrag(unquote(target.replace("&amp;", "&")))
            if re.match(r"[a-z]+:|//", path):
                continue
            file = (page.parent / path).resolve() if path else page
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file() or (place and file.suffix == ".html" and place not in names(file)):
                dead.append(f"{page.relative_to(folder)}: {target}")
    return sorted(dead)
