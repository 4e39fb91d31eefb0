"""Removes passwords from any text: a URL, a key=value DSN, or an exception message that contains one.

The URL is often malformed: a raw `@` or `/` in it is the reason why connecting failed. So the rules do not parse: where
the end of a secret is in doubt, they hide too much rather than too little. `secrets=` (the values of a configuration)
covers secrets that appear alone.
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
# Greedy up to the last @ of the line, because the password may contain an @.
_USERINFO_SECRET = re.compile(r"(://[^:/?#@\n]*:)[^\n]*@")
# No word character follows a closing quote: `password='it's' user=x` is hidden completely.
_SINGLE = r"'(?:\\.|''|[^'\\]|'(?=\w))*(?:'|\Z)"
_DOUBLE = r'"(?:\\.|""|[^"\\]|"(?=\w))*(?:"|\Z)'
# Each pattern starts at the beginning of a word: from every letter of a long one, the search would be quadratic.
_PAIR_SECRET = re.compile(
    rf"""((?<!\w)\w*password["']?\s*=\s*|["']\w*password["']\s*:\s*)({_SINGLE}|{_DOUBLE}|(?:\\.|[^\s\\])+)""",
    re.IGNORECASE | re.DOTALL,
)
# URLs of other services in the same text: hide only what is certainly a userinfo.
_OTHER_URL = re.compile(r"(\b[a-z][a-z0-9+.-]{0,100}://[^:/?#@\s]*:)[^/?#@\s]+@", re.IGNORECASE)
_IS_DSN = re.compile(rf"\s*(?:{_KEY}|\w*password)\s*=", re.IGNORECASE)
_DSN_SECRET = re.compile(
    rf"((?<!\w)\w*password\s*=\s*).*?(?=\s{_KEY}\s*=|\s\w*password\s*=|\Z)", re.IGNORECASE | re.DOTALL
)

_BARE_USERINFO = re.compile(r"(?<![\w/])([\w.+%-]+:)[^\s/]+@")

_SHORTEST_LITERAL = 3
"""Shorter secrets are not searched for: masking every "a" of a text would reveal the secret."""


def redact(text: str, *, secrets: Iterable[str] = ()) -> str:
    """The text without passwords. `secrets` are known values to hide everywhere."""
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


def redact_word(text: str) -> str:
    """As `redact`, for words of a command line: also a URL whose `postgresql://` was forgotten."""
    return _BARE_USERINFO.sub(rf"\g<1>{MASK}@", redact(text))


def _url_spans(text: str) -> list[tuple[int, int]]:
    """The positions of URLs. A quoted URL ends at the last such quote of its line, another at the end of its line."""
    starts = [match.start() for match in _URL_START.finditer(text)]
    spans: list[tuple[int, int]] = []
    for position, start in enumerate(starts):
        if spans and start < spans[-1][1]:
            continue
        newline = text.find("\n", start)
        end = len(text) if newline < 0 else newline
        for following in starts[position + 1 :]:
            # A second URL on the line ends the first, unless no @ came yet: then it may be part of a password.
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
    """In a text that is a DSN, hide an unquoted value with blanks up to the next key."""
    quoted = _PAIR_SECRET.sub(lambda pair: f"{pair[1]}{MASK}" if pair[2][0] in "'\"" else pair[0], text)
    return _DSN_SECRET.sub(rf"\g<1>{MASK}", quoted)


def _redact_pairs(text: str) -> str:
    return _OTHER_URL.sub(rf"\g<1>{MASK}@", _PAIR_SECRET.sub(rf"\g<1>{MASK}", text))
