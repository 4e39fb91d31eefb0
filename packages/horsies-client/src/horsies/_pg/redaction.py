"""Takes passwords out of any text: a URL, a key=value DSN, or an exception message around one.

What must be hidden is often malformed: a raw `@` or `/` in a URL is exactly why connecting failed.
So the rules do not parse, they cover: where the end of a secret is in doubt, too much is hidden
rather than too little. `secrets=` (what a configuration knows) catches values that stand alone.
"""

import re
from collections.abc import Iterable
from typing import Final

MASK: Final = "***"

_URL_START = re.compile(r"postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
# An unquoted secret ends where another known key begins; an unknown word may be a part of it.
_KEY = (
    r"(?:host|hostaddr|port|user|dbname|database|service|options|schema|search_path|application_name|connect_timeout"
    r"|target_session_attrs|passfile|ssl(?!password)\w+|keepalives\w*|channel_binding|gssencmode)"
)
_QUERY_SECRET = re.compile(rf"([?&]\w*password=)[^\n]*?(?=&{_KEY}=|&\w*password=|\n|\Z)", re.IGNORECASE)
# Greedy up to the last @ of the line, because the password itself may contain one.
_USERINFO_SECRET = re.compile(r"(://[^:/?#@\n]*:)[^\n]*@")
# A closing quote is one that no word character follows: `password='it's' user=x` is hidden whole.
_SINGLE = r"'(?:\\.|''|[^'\\]|'(?=\w))*(?:'|\Z)"
_DOUBLE = r'"(?:\\.|""|[^"\\]|"(?=\w))*(?:"|\Z)'
_PAIR_SECRET = re.compile(
    rf"""(\w*password["']?\s*=\s*|["']\w*password["']\s*:\s*)({_SINGLE}|{_DOUBLE}|(?:\\.|[^\s\\])+)""",
    re.IGNORECASE | re.DOTALL,
)
# Other services' URLs in the same text: no guessing there, only what is surely a userinfo.
_OTHER_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^:/?#@\s]*:)[^/?#@\s]+@", re.IGNORECASE)
_IS_DSN = re.compile(rf"\s*(?:{_KEY}|\w*password)\s*=", re.IGNORECASE)
_DSN_SECRET = re.compile(rf"(\w*password\s*=\s*).*?(?=\s{_KEY}\s*=|\s\w*password\s*=|\Z)", re.IGNORECASE | re.DOTALL)

_SHORTEST_LITERAL = 3
"""Shorter secrets are not searched for: masking every "a" of a text would spell the secret out."""


def redact(text: str, *, secrets: Iterable[str] = ()) -> str:
    """The text without passwords. `secrets` are known values to hide wherever they stand."""
    # First the known values: the patterns below might cut one in two and leave its second half.
    for secret in sorted({s for s in secrets if len(s) >= _SHORTEST_LITERAL}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    if _IS_DSN.match(text):
        text = _redact_dsn(text)
    pieces: list[str] = []
    at = 0
    for start, end in _url_spans(text):
        pieces += [_redact_pairs(text[at:start]), _redact_url(text[start:end])]
        at = end
    pieces.append(_redact_pairs(text[at:]))
    return "".join(pieces)


def _url_spans(text: str) -> list[tuple[int, int]]:
    """Where URLs stand. One in quotes ends at the line's last such quote, another at the end of its line."""
    starts = [match.start() for match in _URL_START.finditer(text)]
    spans: list[tuple[int, int]] = []
    for position, start in enumerate(starts):
        if spans and start < spans[-1][1]:
            continue
        newline = text.find("\n", start)
        end = len(text) if newline < 0 else newline
        for following in starts[position + 1 :]:
            # A second URL on the line ends the first, unless no @ came yet: then it may stand in a password.
            if following < end and "@" in text[start:following]:
                end = following
                break
        quote = text[start - 1] if start and text[start - 1] in "'\"`" else ""
        closing = text.rfind(quote, start, end) if quote else -1
        if closing > 0 and ("@" in text[start:closing] or "@" not in text[closing:end]):
            end = closing
        spans.append((start, end))
    return spans


def _redact_url(url: str) -> str:
    # The query first: a raw @ in `?password=a@b` would make the userinfo rule stop inside it.
    url = _QUERY_SECRET.sub(rf"\g<1>{MASK}", url)
    return _USERINFO_SECRET.sub(rf"\g<1>{MASK}@", url, count=1)


def _redact_dsn(text: str) -> str:
    """A text that is itself a DSN: an unquoted value with blanks is hidden up to the next key."""
    quoted = _PAIR_SECRET.sub(_mask_if_quoted, text)
    return _DSN_SECRET.sub(rf"\g<1>{MASK}", quoted)


def _mask_if_quoted(match: re.Match[str]) -> str:
    return f"{match[1]}{MASK}" if match[2][0] in "'\"" else match[0]


def _redact_pairs(text: str) -> str:
    return _OTHER_URL.sub(rf"\g<1>{MASK}@", _PAIR_SECRET.sub(rf"\g<1>{MASK}", text))
