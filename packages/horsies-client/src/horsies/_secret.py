"""Text that holds a password. Its `repr` does not show it, so that a traceback with captured local variables, as error
trackers and `rich` print them, does not either."""


class Secret(str):
    """A password, or a URL that may contain one. Equal to its plain text, and used like it."""

    __slots__ = ()

    def __repr__(self) -> str:
        from horsies._pg.redaction import MASK, redact  # 9 ms of patterns, paid when one is printed

        text = str(self)
        return repr(redact(text)) if "://" in text or "=" in text else repr(MASK)
