"""Find what a built page would load from another host: fonts, scripts, styles, pictures, workers.

Links that a reader may click are no loads. XML namespaces are names, not addresses.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_URL = r"(?:https?:)?//[^\s\"'()<>]+"
_LOADING_TAG = re.compile(
    rf"<(?:script|img|iframe|source|audio|video|embed|object|image|use|input|track)\b[^>]*?"
    rf"\s(?:src|srcset|data|href|xlink:href|poster)\s*=\s*[\"']?\s*({_URL})",
    re.I,
)
_LINK_TAG = re.compile(r"<link\b[^>]*>", re.I)
_PASSIVE_LINK = re.compile(r"rel=[\"']?(?:canonical|next|prev|alternate|license)\b", re.I)
_HREF = re.compile(rf"href\s*=\s*[\"']?\s*({_URL})", re.I)
_STYLE = re.compile(rf"(?:url\(\s*[\"']?\s*|@import\s+[\"'])({_URL})", re.I)
_LITERAL = re.compile(r"[\"'`]((?:https?|wss?):)?(//[a-zA-Z0-9][^\s\"'`]*)")
_NAMESPACE = re.compile(r"^(?:https?:)?//www\.w3\.org/")
_COMMENT = re.compile(r"/\*.*?\*/", re.S)


def loads(text: str, suffix: str) -> Iterator[str]:
    """The addresses on other hosts that a file of this type makes a browser load."""
    found: list[str] = []
    if suffix in (".html", ".svg"):
        found += _LOADING_TAG.findall(text)
        for tag in _LINK_TAG.findall(text):
            if not _PASSIVE_LINK.search(tag):
                found += _HREF.findall(tag)
    if suffix in (".html", ".svg", ".css"):
        found += _STYLE.findall(_COMMENT.sub("", text))
    if suffix == ".js":
        found += [scheme + rest for scheme, rest in _LITERAL.findall(_COMMENT.sub("", text)) if scheme]
    return (address for address in found if not _NAMESPACE.match(address))


def loads_of(folder: Path) -> list[str]:
    """Every load from outside in a built site, as `file: address`."""
    return [
        f"{path.relative_to(folder)}: {address}"
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".html", ".svg", ".css", ".js")
        for address in loads(path.read_text(errors="replace"), path.suffix)
    ]
