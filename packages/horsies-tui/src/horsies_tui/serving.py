"""The dashboard in a browser: textual-serve starts one of us per visitor and shows it there."""

import shlex
import sys
from collections.abc import Sequence

from textual_serve.server import Server


def serve(arguments: Sequence[str], *, host: str, port: int) -> None:
    """Until it is interrupted."""
    command = shlex.join([sys.executable, "-m", "horsies_tui", *arguments])
    Server(command, host=host, port=port, title="horsies").serve()
