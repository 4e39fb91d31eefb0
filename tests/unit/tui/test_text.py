"""Rows as text that a terminal can be shown."""

import re
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from horsies_tui import text
from horsies_tui.data.models import Count

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(value: str) -> None:
    assert not CONTROL.search(text.inert(value))
    assert not CONTROL.search(text.block(value, 1_000).replace("\n", ""))


@given(st.text(), st.integers(2, 60))
def test_a_cell_is_cut(value: str, limit: int) -> None:
    assert len(text.inert(value, limit)) <= limit


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [(0.0123, "12ms"), (4.21, "4.2s"), (59, "59s"), (61, "1m01"), (1200, "20m"), (11_100, "3h05"), (180_000, "2d02h"),
     (-4, "-4.0s"), (10_000_000, "115d")],
)  # fmt: skip
def test_a_span_is_short(seconds: float, wanted: str) -> None:
    assert text.span(timedelta(seconds=seconds)) == wanted


@pytest.mark.parametrize(
    ("value", "wanted"), [(0, "0"), (9_999, "9,999"), (12_345, "12.3k"), (1_142_000, "1.1M"), (999_900, "1.0M")]
)
def test_a_number_is_short(value: float, wanted: str) -> None:
    assert text.number(value) == wanted


def test_bars_and_curves_have_their_width() -> None:
    assert text.bar(1, 2, 10) == "█████░░░░░"
    assert text.bar(0, 0, 4) == "░░░░"
    assert text.bar(9, 2, 4) == "████"
    assert text.blocks([0, 50, 100], 100) == "▁▄█"
    assert text.blocks([0, 0]) == "▁▁"


def test_json_is_made_readable_and_what_is_cut_says_so() -> None:
    assert text.pretty_json('{"a":1}', 7) == '{\n  "a": 1\n}'
    assert "93 more characters" in text.pretty_json('{"a":1}', 100)
    assert text.pretty_json("not json", 8) == "not json"


def test_a_count_says_what_is_known_of_it() -> None:
    counts = (
        Count(7),
        Count(0),
        Count(1_234_567, is_estimate=True),
        Count(1_500, is_least=True),
        Count(0, is_least=True),
    )
    assert [text.counted(count) for count in counts] == ["7", "0", "≈1.2M", "1,500+", "–"]
