"""Colours. Every status has a colour and a glyph, the same on every screen; the glyph helps without the colour."""

from typing import Final

from textual.theme import Theme

GLYPHS: Final = {
    "PENDING": "○", "CLAIMED": "◔", "RUNNING": "▶", "COMPLETED": "✓", "FAILED": "✗", "CANCELLED": "⊘",
    "EXPIRED": "◌", "READY": "◦", "WAITING": "◷", "ENQUEUED": "◔", "SKIPPED": "–", "PAUSED": "‖",
    "alive": "●", "late": "◐", "dead": "✗", "stopped": "○", "draining": "◔", "drained": "‖",
    "ok": "✓", "warn": "▲", "problem": "✗", "hidden": "◌",
    "WORKER_FAILURE": "☠",
}  # fmt: skip

_DARK: Final = {
    "pending": "#93a1b5", "claimed": "#e5b567", "running": "#6cb2f7", "completed": "#8fc97a", "failed": "#f27983",
    "cancelled": "#b58cf2", "expired": "#f0955d",
}  # fmt: skip
_LIGHT: Final = {
    "pending": "#5d6b80", "claimed": "#96690a", "running": "#1862b8", "completed": "#2f7d1f", "failed": "#c02537",
    "cancelled": "#7a3fd1", "expired": "#b0550f",
}  # fmt: skip

_ALIASES: Final = {name.upper(): name for name in _DARK} | {
    "READY": "claimed", "ENQUEUED": "claimed", "WAITING": "claimed", "PAUSED": "expired", "alive": "completed",
    "late": "claimed", "draining": "claimed", "drained": "claimed", "dead": "failed",
    "ok": "completed", "warn": "claimed", "problem": "failed",
    "WORKER_FAILURE": "failed",
}  # fmt: skip
MUTED: Final = "muted"
"""Passes for a state where a text is less important than its neighbours."""


def _variables(colours: dict[str, str]) -> dict[str, str]:
    return {f"status-{name}": colour for name, colour in colours.items()}


DEFAULT_VARIABLES: Final = _variables(_DARK)
"""The colours for themes that do not define these variables."""

THEMES: Final = (
    Theme(
        name="horsies-dark", dark=True, primary="#6cb2f7", secondary="#b58cf2", accent="#e5b567",
        foreground="#d4dbe6", background="#10141b", surface="#151a23", panel="#1d2430",
        success="#8fc97a", warning="#e5b567", error="#f27983",
        variables={**_variables(_DARK), "footer-key-foreground": "#e5b567", "border": "#344055"},
    ),
    Theme(
        name="horsies-light", dark=False, primary="#1862b8", secondary="#7a3fd1", accent="#96690a",
        foreground="#1f2733", background="#f7f8fa", surface="#ffffff", panel="#e9edf2",
        success="#2f7d1f", warning="#96690a", error="#c02537",
        variables={**_variables(_LIGHT), "footer-key-foreground": "#1862b8", "border": "#b8c2d0"},
    ),
)  # fmt: skip
CYCLE: Final = ("horsies-dark", "horsies-light", "nord", "gruvbox", "catppuccin-mocha", "textual-ansi")


def variable_of(state: str) -> str:
    """The theme variable that colours a state; that of PENDING for others."""
    return f"status-{_ALIASES.get(state, 'pending')}"


def badge(state: str, word: str = "") -> str:
    """The glyph of a state, and its name or another word."""
    return f"{GLYPHS.get(state, '·')} {word or state.lower()}"
