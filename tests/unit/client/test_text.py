"""What may reach a terminal."""

import re
import sys

from horsies._text import printable


def test_controls_are_spelled_out() -> None:
    assert printable("\x1b[31mred\x1b]0;owned\x07") == r"\x1b[31mred\x1b]0;owned\x07"
    assert printable("a\rb\0c\x7f\x9b") == r"a\x0db\x00c\x7f\x9b"
    assert printable("\u202eevil\u200b\u2066\ufeff\ud800") == r"\u202eevil\u200b\u2066\ufeff\ud800"


def test_everything_else_is_left_alone() -> None:
    text = "plain text\n\twith ümlaut, 漢字, 🐎, [red]markup[/] and %s {} \\x1b"
    assert printable(text) == text


def test_nothing_unfit_remains() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    found = printable(every)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", found)
    found.encode()  # fit for any stream that speaks UTF-8
