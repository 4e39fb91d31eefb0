"""Roots of file systems: the base images as debootstrap makes them, and the stages of a Dockerfile on top of them.

A stage is an overlay over the stage before. The mounts belong to the process that called `own_mounts`, and end with it.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.containers.dockerfile import Image, Instruction, Stage

SUITE = "bookworm"
# What the shared libraries and the extension modules of Python need, as in the image `python:3.13-slim-bookworm`.
LIBRARIES = (
    "ca-certificates", "netbase", "tzdata", "libssl3", "libffi8", "libsqlite3-0", "zlib1g", "libbz2-1.0", "liblzma5",
    "libreadline8", "libncursesw6", "libuuid1", "libexpat1",
)  # fmt: skip
# Where packages come from is a matter of the machine, as with the proxy arguments of `docker build`.
FROM_MACHINE = (
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL", "UV_INDEX_URL",
    "UV_DEFAULT_INDEX", "PIP_CERT", "SSL_CERT_FILE",
)  # fmt: skip
MACHINE_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt")
_CLONE_NEWNS = 0x00020000

# $1 root, $2 hosts file or nothing, then pairs of a directory and options for each tmpfs, then -- and the command.
ENTER = r"""
set -eu
root=$1; hosts=$2; shift 2
mount --bind "$root" "$root"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
for one in null zero full random urandom tty; do touch "$root/dev/$one"; mount --bind "/dev/$one" "$root/dev/$one"; done
ln -s /proc/self/fd "$root/dev/fd"; ln -s fd/0 "$root/dev/stdin"; ln -s fd/1 "$root/dev/stdout"
ln -s fd/2 "$root/dev/stderr"; mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/dev/shm"
mount --bind /dev/pts "$root/dev/pts"
if [ -n "$hosts" ]; then mount --bind "$hosts" "$root/etc/hosts"; fi
while [ "$1" != -- ]; do mount -t tmpfs -o "$2" tmpfs "$root$1"; shift 2; done
shift
if [ "$1" = read-only ]; then mount -o remount,bind,ro "$root"; fi
shift
exec chroot "$root" "$@"
"""


def own_mounts() -> None:
    """Mounts from here on are seen by this process and its children alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare: this needs root, and a kernel that allows mount namespaces")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


@dataclass
class Root:
    """The files of an image: `layers` from the top down, and where they are mounted."""

    path: Path
    layers: list[Path]
    image: Image = field(default_factory=Image)


def make_bases(folder: Path) -> dict[str, Root]:
    """`debian:bookworm-slim` and `python:3.13-slim-bookworm`, or what comes as near to them as this machine can."""
    debian, python = folder / "debian", folder / "python"
    if not (debian / "ready").exists():
        shutil.rmtree(debian, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(LIBRARIES)}", SUITE, str(debian)]
        subprocess.run([*command, *_mirror()], check=True, stdout=subprocess.DEVNULL)
        _write(debian / "usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755)  # packages start no service
        clean = 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin"; };\n'
        _write(debian / "etc/apt/apt.conf.d/docker-clean", clean, 0o644)  # as in the image: it keeps no packages
        shutil.rmtree(debian / "var/cache/apt/archives", ignore_errors=True)
        (debian / "ready").touch()
    if not (python / "ready").exists():
        shutil.rmtree(python, ignore_errors=True)
        subprocess.run(["cp", "--archive", str(debian), str(python)], check=True)
        _copy_python(python)
    image = Image(environment={"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"})
    return {
        "debian:bookworm-slim": Root(debian, [debian], deepcopy(image)),
        "python:3.13-slim-bookworm": Root(python, [python], deepcopy(image)),
    }


def _mirror() -> list[str]:
    """The mirror that this machine uses, if it names one in the newer form of apt's sources."""
    for path in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for line in path.read_text().splitlines():
            if line.startswith("URIs:"):
                return [line.split()[1]]
    return []


def _copy_python(root: Path) -> None:
    """A Python of this machine that is not Debian's, at /usr/local, without its packages and tests."""
    for version in ("3.13", "3.12", "3.11"):
        found = subprocess.run(["uv", "python", "find", "--system", version], capture_output=True, text=True)
        if found.returncode == 0 and not found.stdout.startswith("/usr/bin/"):
            break
    else:
        raise SystemExit("there is no Python 3.11 to 3.13 outside /usr/bin: install one, with pyenv for example")
    ask = [found.stdout.strip(), "-c", "import sys; print(sys.base_prefix)"]
    prefix = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    local = root / "usr/local"
    shutil.copytree(
        Path(prefix) / "lib", local / "lib", symlinks=True, dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("site-packages", "test", "__pycache__", "tkinter", "idlelib", "*.a", "config-*"),
    )  # fmt: skip
    (local / f"lib/python{version}/site-packages").mkdir(exist_ok=True)
    shutil.copy(Path(prefix) / f"bin/python{version}", local / "bin")
    for name in ("python", "python3"):
        (local / "bin" / name).symlink_to(f"python{version}")
    inside = ["chroot", str(root)]
    subprocess.run([*inside, "/sbin/ldconfig"], check=True)
    clean = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    subprocess.run([*inside, "python3", "-m", "ensurepip"], check=True, env=clean, stdout=subprocess.DEVNULL)
    (local / "bin/pip").symlink_to("pip3")


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


class Builder:
    """Builds the stages of a Dockerfile, each when it is first asked for."""

    def __init__(self, stages: dict[str, Stage], bases: dict[str, Root], context: Path, folder: Path) -> None:
        self._stages = stages
        self._context = context
        self._folder = folder
        self.roots = dict(bases)
        self.steps = 0

    def root(self, name: str) -> Root:
        if name not in self.roots:
            stage = self._stages[name]
            below = self.root(stage.base)
            root = self._overlay(name, below)
            for one in stage.instructions:
                self._carry_out(root, one)
            self.roots[name] = root
        return self.roots[name]

    def size_mb(self, name: str) -> float:
        """What the stages on top of the base image add to it."""
        found = subprocess.run(
            ["du", "--summarize", "--bytes", "--total", *map(str, self.root(name).layers[:-1])],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return int(found.stdout.splitlines()[-1].split()[0]) / 1e6

    def _overlay(self, name: str, below: Root) -> Root:
        upper, work, merged = (self._folder / name / part for part in ("upper", "work", "root"))
        for path in (upper, work, merged):
            path.mkdir(parents=True)
        options = f"lowerdir={':'.join(map(str, below.layers))},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(merged)], check=True)
        return Root(merged, [upper, *below.layers], deepcopy(below.image))

    def _carry_out(self, root: Root, one: Instruction) -> None:
        self.steps += 1
        image = root.image
        if image.take(one):
            return
        if one.word == "WORKDIR":
            image.directory = one.text
            (root.path / one.text.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif one.word == "COPY":
            self._copy(root, one.text.split())
        else:
            sys.stdout.write(f"  RUN {one.text}"[:160] + "\n")
            sys.stdout.flush()
            machine = {name: os.environ[name] for name in FROM_MACHINE if name in os.environ}
            self._run(root, as_user(image, [*one.arguments], machine))

    def _copy(self, root: Root, words: list[str]) -> None:
        source = self._context
        if words[0].startswith("--from="):
            source = self.root(words.pop(0).removeprefix("--from=")).path
        *paths, target = words
        for path in paths:
            found = source / path.lstrip("/")
            place = root.path / str(Path(root.image.directory) / target).lstrip("/")
            if found.is_dir():
                shutil.copytree(found, place, symlinks=True, dirs_exist_ok=True)
            else:
                place = place / found.name if target.endswith("/") else place
                shutil.copy2(found, place)

    def _run(self, root: Root, command: Sequence[str]) -> None:
        """With the network and the certificates of this machine."""
        files = "".join(f'mount --bind {path} "$1{path}"; ' for path in MACHINE_FILES)
        touch = f'touch "$1{MACHINE_FILES[0]}"; '
        script = touch + files + ENTER.replace('mount --bind "$root" "$root"\n', "")
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", "sh", "-c", script, "sh",
             str(root.path), "", "--", "writable", *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            sys.stderr.write(done.stdout)
            raise SystemExit(f"a step of the Dockerfile failed with exit code {done.returncode}")


def as_user(image: Image, command: Sequence[str], environment: dict[str, str] | None = None) -> list[str]:
    """The command as the image's user in its directory, with its environment and nothing of this machine's."""
    uid, _, gid = image.user.partition(":")
    words = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    if uid != "0":
        words += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    variables = image.environment | (environment or {})
    return [*words, "env", "-i", f"--chdir={image.directory}", *(f"{k}={v}" for k, v in variables.items()), *command]
