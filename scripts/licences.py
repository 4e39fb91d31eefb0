"""What a distribution's metadata says of its licence, and whether that licence is allowed. Pure."""

import re
from collections.abc import Sequence
from email.message import Message

ALLOWED = frozenset({
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0", "PSF-2.0",
    "PostgreSQL", "Python-2.0", "Unlicense", "ZPL-2.1", "Zlib",
    # file-level or library copyleft: a program that imports them may be sold, its own code stays its own
    "LGPL-2.1-only", "LGPL-2.1-or-later", "LGPL-3.0-only", "LGPL-3.0-or-later", "MPL-2.0",
})  # fmt: skip
"""Licences that allow commercial use of a program which depends on the package."""
_WORDS = {
    "apache": "Apache-2.0", "apache 2.0": "Apache-2.0", "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause", "bsd license": "BSD-3-Clause", "bsd 3-clause": "BSD-3-Clause", "new bsd": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause", "modified bsd license": "BSD-3-Clause",
    "simplified bsd": "BSD-2-Clause", "isc license": "ISC", "isc license (iscl)": "ISC", "mit license": "MIT",
    "the mit license": "MIT", "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "python software foundation license":
    "PSF-2.0", "the unlicense (unlicense)": "Unlicense", "postgresql license": "PostgreSQL",
    "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
    "gnu lesser general public license v3 or later (lgplv3+)": "LGPL-3.0-or-later",
    "gnu library or lesser general public license (lgpl)": "LGPL-2.1-or-later",
}  # fmt: skip
"""Names in old metadata, in small letters, with the SPDX identifier that they mean."""


def expression(metadata: Message) -> str | None:
    """The licence as an SPDX expression: as it is declared, or by the classifiers, or by the old field of free text."""
    if declared := metadata.get("License-Expression"):
        return declared
    classified = [
        value.rpartition(" :: ")[2]
        for value in metadata.get_all("Classifier", [])
        if value.startswith("License :: ") and value != "License :: OSI Approved"
    ]
    if classified:
        return " AND ".join(_identifier(name) for name in classified)
    text = (metadata.get("License") or "").strip()
    return _identifier(text.splitlines()[0]) if text else None


def _identifier(name: str) -> str:
    known = {one.lower(): one for one in ALLOWED} | _WORDS
    return known.get(name.strip().lower(), name.strip())


def is_allowed(licence: str) -> bool:
    """Of an SPDX expression: every part of AND, one part of OR. A name that is not known is not allowed."""
    words = re.findall(r"\(|\)|[^\s()]+", licence)
    try:
        allowed, rest = _either(words)
    except IndexError:
        return False
    return allowed and not rest


def _either(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    allowed, rest = _all(words)
    while rest and rest[0].upper() == "OR":
        also, rest = _all(rest[1:])
        allowed = allowed or also
    return allowed, rest


def _all(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    allowed, rest = _one(words)
    while rest and rest[0].upper() == "AND":
        also, rest = _one(rest[1:])
        allowed = allowed and also
    return allowed, rest


def _one(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    if words[0] == "(":
        allowed, rest = _either(words[1:])
        return allowed and rest[0] == ")", rest[1:]
    rest = words[1:]
    if rest and rest[0].upper() == "WITH":  # an exception only ever permits more
        rest = rest[2:]
    return words[0] in ALLOWED, rest
