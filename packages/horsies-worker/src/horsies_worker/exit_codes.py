"""How a worker process ends, for the supervisor that decides whether to start it again."""

from enum import IntEnum


class ExitCode(IntEnum):
    CLEAN = 0
    """Stopped by a signal, all results written."""
    FAILED = 1
    """An unexpected error, which the log shows. Start it again."""
    USAGE = 2
    """The command line is wrong. Do not start it again unchanged."""
    CONFIGURATION = 3
    """The app does not import, its configuration is wrong, or metrics cannot be served. Do not start it again
    unchanged."""
    SCHEMA = 4
    """The tables are missing or too old and may not, or cannot, be upgraded from here: run `horsies-migrate up`. Or
    they are too new for this release: install the newer one. Found at the start, or within a minute of the change."""
    DATABASE = 5
    """The database refuses this worker (password, missing database), was away for longer than --database-timeout, or
    was away when the worker left, so that results were lost. Start it again, after a while."""
    CHILDREN = 6
    """No child process can be started: the app fails to import there, or the machine has no room. Back off."""
