"""Text that holds a password, and whose `repr` does not show it: error trackers and `rich` print local variables with a
traceback."""


class Secret(str):
    """A password, or a URL that may contain one. Equal to its plain text, and used like it."""

    __slots__ = ()

    def __repr__(self) -> str:
        from horsies._redaction import MASK, redact  # takes 9 ms to import

        text = str(self)
        return repr(redact(text)) if "://" in text or "=" in text else repr(MASK)
