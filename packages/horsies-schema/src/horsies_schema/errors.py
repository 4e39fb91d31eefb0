"""How a migration fails: a sentence for a person, an exit code for a script."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What `horsies-migrate` says to a script."""

    OK = 0
    """Done."""
    BEHIND = 1
    """`check` found the schema behind: run `horsies-migrate up`."""
    USAGE = 2
    """The command line is wrong, or no database was named."""
    UNSUITABLE = 3
    """The database cannot be used: too old, not UTF8, read-only, or newer than this package."""
    UNREACHABLE = 4
    """The database cannot be reached, or refuses the account."""
    LOCKED = 5
    """The locks were not obtained in time; nothing was changed. Run it again."""
    INTERRUPTED = 130
    """Ctrl-C: the revision under way was rolled back, and those before it stay. Run it again to go on."""


class MigrationError(RuntimeError):
    """One sentence for a person, and the exit code for a script."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code
