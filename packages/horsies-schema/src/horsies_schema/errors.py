"""How a migration fails: a sentence for a person, an exit code for a script."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What `horsies-migrate` says to a script."""

    OK = 0
    BEHIND = 1
    USAGE = 2
    UNSUITABLE = 3
    UNREACHABLE = 4
    LOCKED = 5
    INTERRUPTED = 130


class MigrationError(RuntimeError):
    """One sentence for a person, and the exit code for a script."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code
