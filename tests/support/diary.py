"""A new user's first day, followed literally: `just diary`.

Builds the wheels of the packages and runs docs/tutorials/first-day.md in an empty home directory, as a reader would:
every command is typed into a terminal, every file is written, every output that the page shows must appear. `pip`
takes horsies from the wheels and everything else from the package index. Ends with a table of commands and minutes.

How the page says it:

- a block `sh` is typed into the first terminal, `sh title="NAME"` into the terminal NAME, which is opened at the first
  use in the directory of the first one. A block whose last command does not end, such as a server, is followed by the
  text that it prints once it is ready; the next block for that terminal begins with Ctrl-C;
- `python title="FILE"` is a file, written in the directory of the first terminal;
- a block `text` is what the terminal of the block before it prints. A line `...` stands for any lines, and `...` in a
  line for any characters.
"""

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorials" / "first-day.md"
FIRST = "first"
COMMAND_S = 300.0
_BLOCK = re.compile(
    r'^(?:(?P<heading>## [^\n]*)$|```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```)', re.M | re.S
)
_PROMPT = re.compile(r"<<(\d+)>>")


@dataclass(frozen=True, slots=True)
class Step:
    """One block of the page: `kind` is sh, text, or the language of a file."""

    part: str
    kind: str
    title: str | None
    body: str


def steps_of(page: str) -> list[Step]:
    found: list[Step] = []
    part = ""
    for match in _BLOCK.finditer(page):
        if match["heading"]:
            part = match["heading"].removeprefix("## ")
        else:
            found.append(Step(part, match["kind"], match["title"], match["body"]))
    return found


def commands_of(body: str) -> list[str]:
    """The commands of a block: lines that end with a backslash and here-documents go on."""
    found: list[str] = []
    lines = iter(body.splitlines())
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        while line.endswith("\\"):
            line += "\n" + next(lines)
        if here := re.search(r"<<\s*'?(\w+)'?", line):
            for more in lines:
                line += "\n" + more
                if more == here[1]:
                    break
        found.append(line)
    return found


def expected(text: str) -> re.Pattern[str]:
    """The pattern of an output block."""
    lines = [
        r"(?:.*\n)*?"
        if line == "..."
        else ".*?".join(re.escape(part) for part in line.split("...")) + r"[ \t]*(?:\n|(?=<<\d))"
        for line in text.splitlines()
    ]
    return re.compile("".join(lines))


class Terminal:
    """A shell on a terminal of its own, as a person has one."""

    def __init__(self, name: str, directory: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._output = ""
        self._block_from = self._command_from = 0
        self._grown = threading.Condition()
        self.is_busy = False
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(directory)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        threading.Thread(target=self._read, daemon=True).start()
        self._type("stty -echo; PS1='<<$?>>'; PS2=''\n")
        self._wait_for(_PROMPT, 20)  # the echo of this line has no number in it

    @property
    def directory(self) -> Path:
        return Path(f"/proc/{self._pid}/cwd").readlink()

    def run(self, command: str, *, must_end: bool) -> None:
        """Type a command. A command that ends must succeed."""
        self._command_from = len(self._output)
        self._type(command + "\n")
        self.is_busy = not must_end
        if must_end:
            code = self._wait_for(_PROMPT, COMMAND_S)[1]
            if code != "0":
                raise SystemExit(f"{self.name}$ {command}\n{self.shown}\nended with code {code}")

    def begin(self) -> None:
        """A new block of commands begins: Ctrl-C, if a command of the one before still runs."""
        if self.is_busy:
            self._command_from = len(self._output)
            self._type("\x03")
            self._wait_for(_PROMPT, 60)
            self.is_busy = False
        self._block_from = len(self._output)

    def expect(self, text: str) -> None:
        """The block that began last prints this; a command that keeps running has a minute for it."""
        self._command_from = self._block_from
        self._wait_for(expected(text), 60 if self.is_busy else 0)

    def close(self) -> None:
        try:
            self.begin()
        finally:
            os.kill(self._pid, signal.SIGHUP)
            os.waitpid(self._pid, 0)

    @property
    def shown(self) -> str:
        """What the terminal has printed since the command, or the block, began."""
        return self._output[self._command_from :]

    def _type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def _read(self) -> None:
        while True:
            select.select([self._file], [], [])
            try:
                text = os.read(self._file, 65_536).decode(errors="replace").replace("\r", "")
            except OSError:  # the shell is gone
                return
            with self._grown:
                self._output += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
                self._grown.notify_all()

    def _wait_for(self, pattern: re.Pattern[str], seconds: float) -> re.Match[str]:
        with self._grown:
            if self._grown.wait_for(lambda: pattern.search(self.shown), seconds):
                found = pattern.search(self.shown)
                assert found is not None
                return found
        raise SystemExit(f"terminal {self.name!r} does not show {pattern.pattern!r}:\n{self.shown}")


@dataclass(slots=True)
class Count:
    commands: int = 0
    files: int = 0
    seconds: float = 0.0
    slowest: tuple[float, str] = field(default=(0.0, ""))


def follow(page: str, home: Path, environment: dict[str, str]) -> dict[str, Count]:
    """Do what the page says. Returns the counts of each part."""
    counts: dict[str, Count] = {}
    steps = steps_of(page)
    with ExitStack() as stack:
        terminals: dict[str, Terminal] = {}

        def terminal(name: str) -> Terminal:
            if name not in terminals:
                where = terminals[FIRST].directory if FIRST in terminals else home
                terminals[name] = Terminal(name, where, environment)
                stack.callback(terminals[name].close)
            return terminals[name]

        last = terminal(FIRST)
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            count = counts.setdefault(step.part, Count())
            begun = time.monotonic()
            if step.kind == "sh":
                last = terminal(step.title or FIRST)
                last.begin()
                commands = commands_of(step.body)
                for number, command in enumerate(commands, 1):
                    # In a terminal with a name, the last command is a server.
                    keeps_running = step.title is not None and number == len(commands)
                    started = time.monotonic()
                    sys.stderr.write(f"{last.name}$ {command}\n")
                    last.run(command, must_end=not keeps_running)
                    count.slowest = max(count.slowest, (time.monotonic() - started, command.splitlines()[0]))
                    count.commands += 1
                if following is not None and following.kind != "text" and step.title is not None:
                    raise SystemExit(f"the page does not say what {commands[-1]!r} prints when it is ready")
            elif step.kind == "text":
                last.expect(step.body)
            elif step.title is not None:
                target = terminals[FIRST].directory / step.title
                target.write_text(step.body)
                count.files += 1
            count.seconds += time.monotonic() - begun
    return counts


def table(counts: dict[str, Count]) -> Iterator[str]:
    yield f"{'part':<44} {'commands':>8} {'files':>6} {'time':>8}   the slowest command"
    whole = Count()
    for part, count in counts.items():
        seconds, command = count.slowest
        yield f"{part:<44} {count.commands:>8} {count.files:>6} {count.seconds:>6.1f} s   {seconds:.1f} s: {command}"
        whole.commands += count.commands
        whole.files += count.files
        whole.seconds += count.seconds
    yield f"{'all of it':<44} {whole.commands:>8} {whole.files:>6} {whole.seconds:>6.1f} s"


def bare_environment(home: Path, wheels: Path) -> dict[str, str]:
    """As on a machine where nothing of ours is installed; only pip knows the wheels."""
    kept = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "REQUESTS_")) or name in (
        "LANG", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    )}  # fmt: skip
    ours = str(Path(sys.prefix) / "bin")
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != ours]
    pins = wheels / "constraints.txt"
    names = sorted(wheel.name.split("-")[:2] for wheel in wheels.glob("*.whl"))
    pins.write_text("".join(f"{name.replace('_', '-')}=={version}\n" for name, version in names))
    links = " ".join(filter(None, [str(wheels), os.environ.get("PIP_FIND_LINKS")]))
    return {
        **kept, "HOME": str(home), "PATH": os.pathsep.join(path), "TERM": "dumb", "PIP_FIND_LINKS": links,
        "PIP_CONSTRAINT": str(pins), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "VIRTUAL_ENV_DISABLE_PROMPT": "1",
        # as root the server would otherwise use the machine's own directory
        "HORSIES_EMBEDDED_DIR": str(home / "postgres"),
    }  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    page = Path(arguments[0]) if arguments else PAGE
    with tempfile.TemporaryDirectory(prefix="horsies-diary-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        wheels, home = Path(folder) / "wheels", Path(folder) / "home"
        home.mkdir()
        build = f"uv build --quiet --all-packages --wheel --out-dir {shlex.quote(str(wheels))}"
        subprocess.run(shlex.split(build), cwd=ROOT, check=True)
        counts = follow(page.read_text(), home, bare_environment(home, wheels))
    sys.stdout.write("\n" + "\n".join(table(counts)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
