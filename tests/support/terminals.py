"""A real terminal for tests: tmux on a socket of its own, seen through its captured pane."""

import shlex
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.support.waiting import eventually


def has_tmux() -> bool:
    return shutil.which("tmux") is not None


class Terminal:
    """Runs one command in a terminal of a given size; ended with the block."""

    def __init__(self, command: Sequence[str], size: tuple[int, int], **environment: str) -> None:
        self._socket = f"horsies-{uuid.uuid4().hex[:8]}"
        self._exit_file = Path(tempfile.gettempdir()) / f"{self._socket}.exit"
        run = shlex.join(["env", *(f"{key}={value}" for key, value in environment.items()), *command])
        self._command = f"{run}; echo $? > {shlex.quote(str(self._exit_file))}"
        self._size = size

    def __enter__(self) -> Self:
        width, height = map(str, self._size)
        # without this the colours are squeezed into 256
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", width, "-y", height, "cat")
        self._tmux("set-option", "-g", "default-terminal", "tmux-256color")
        self._tmux("set-option", "-ga", "terminal-overrides", ",*:Tc")
        self._tmux("set-option", "-g", "remain-on-exit", "on")
        self._tmux("respawn-pane", "-k", self._command)
        return self

    def __exit__(self, *exc: object) -> None:
        self._tmux("kill-server", check=False)
        self._exit_file.unlink(missing_ok=True)

    def keys(self, *keys: str) -> None:
        for key in keys:
            self._tmux("send-keys", "--", key)
            time.sleep(0.05)  # an escape and what follows it must not arrive as one sequence

    def text(self, *, colours: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(["-e", "-N"] if colours else []))

    def history(self) -> str:
        """All that was written, also what has left the screen."""
        return self._tmux("capture-pane", "-p", "-S", "-")

    def shows(self, text: str, *, timeout: float = 30.0) -> None:
        try:
            eventually(lambda: text in self.text(), timeout=timeout, interval=0.1, describe=f"{text!r} in the terminal")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    @property
    def exit_code(self) -> int | None:
        """Once it has ended. Left in a file by the shell: what tmux says of it is now and then nothing, for ever."""
        text = self._exit_file.read_text() if self._exit_file.exists() else ""
        return int(text) if text.endswith("\n") else None

    def _tmux(self, *arguments: str, check: bool = True) -> str:
        run = subprocess.run(["tmux", "-L", self._socket, *arguments], capture_output=True, text=True, check=False)
        assert run.returncode == 0 or not check, run.stderr
        return run.stdout
