"""From an empty directory to a task's result and scraped metrics, by the commands of deploy/docker alone."""

import argparse
import fcntl
import os
import pty
import re
import secrets
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from tests.support import postgres
from tests.support.containers import compose, dockerfile, roots
from tests.support.containers.services import Container, Network, Postgres
from tests.support.waiting import eventually

_ESCAPE = re.compile(rb"\x1b(\[[0-9;?<>=]*[a-zA-Z]|\][^\x07\x1b]*(\x07|\x1b\\))")
REPOSITORY = Path(__file__).parents[3]
TOOLS = ("debootstrap", "unshare", "nsenter", "setpriv", "ip", "git", "uv")


def main() -> int:
    parser = argparse.ArgumentParser(prog="just containers", description=__doc__)
    parser.add_argument("--bases", type=Path, help="keep the base images in this directory, and find them there again")
    options = parser.parse_args()
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        sys.exit(f"{', '.join(missing)}: not found; apt-get install debootstrap util-linux iproute2 git")
    if os.geteuid() != 0:
        sys.exit("this needs root: for mounts and namespaces")
    began = time.monotonic()
    roots.own_mounts()
    folder = Path(tempfile.mkdtemp(prefix="horsies-containers-"))
    folder.chmod(0o755)
    try:
        source = export(folder / "repository")
        builder = build(source, folder, options.bases or folder / "bases")
        run(source / "deploy/docker/compose.yaml", builder, folder)
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", *map(str, folder.glob("images/*/root"))], check=False)
        shutil.rmtree(folder, ignore_errors=True)
    print(f"everything held, after {time.monotonic() - began:.0f} s")
    return 0


def export(target: Path) -> Path:
    """The files that git knows, as they are now, in an empty directory."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (REPOSITORY / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target / name)
    return target


def build(source: Path, folder: Path, bases: Path) -> roots.Builder:
    print("== base images: debootstrap, and a Python of this machine at /usr/local", flush=True)
    bases.mkdir(parents=True, exist_ok=True)
    stages = dockerfile.read(source / "deploy/docker/Dockerfile")
    builder = roots.Builder(stages, roots.make_bases(bases), source, folder / "images")
    for name in stages:
        print(f"== build {name}", flush=True)
        builder.root(name)
    print(f"{builder.steps} instructions of {len(stages)} stages were carried out")
    for name in ("migrate", "exporter", "worker", "scheduler", "dashboard", "pgbouncer"):
        print(f"  {name} adds {builder.size_mb(name):.0f} MB to its base image")
    return builder


def run(path: Path, builder: roots.Builder, folder: Path) -> None:
    names = re.findall(r"^(\w+)=$", (path.parent / ".env.example").read_text(), re.MULTILINE)
    services = compose.read(path, {name: secrets.token_hex(24) for name in names})
    network = Network(folder, list(services))
    running: dict[str, Container] = {}
    server: Postgres | None = None
    try:
        for service in compose.in_order(services):
            if service.name == "postgres":
                server = Postgres(service, network, folder / "postgres", path, postgres.bin_dir())
                print(
                    f"== up postgres (in place of its image): healthy after {server.await_health():.1f} s", flush=True
                )
                continue
            container = start(service.name, services, builder, network, folder)
            if service.name == "migrate":
                code = container.await_end()
                print(f"== up migrate: exit code {code}: {container.tail(3)}", flush=True)
                assert code == 0
                continue
            running[service.name] = container
            print(f"== up {service.name}: healthy after {container.await_health():.1f} s", flush=True)
            container.check_locks()
        show_work(services, builder, network, folder, running)
        for name, container in reversed(running.items()):
            code, seconds = container.stop()
            allowed = container.service.grace_s
            print(f"== stop {name}: exit code {code}, {seconds:.1f} s of its {allowed:g} s", flush=True)
            # SIGTERM ends PgBouncer at once, which it calls a failure; its clients are gone by now
            assert code == (1 if name == "pgbouncer" else 0), container.tail()
        assert server is not None
        server.stop()
    finally:
        for container in running.values():
            container.kill()
        if server is not None:
            server.kill()
        network.close()


def start(
    name: str, services: dict[str, compose.Service], builder: roots.Builder, network: Network, folder: Path,
    terminal: int = subprocess.DEVNULL,
) -> Container:  # fmt: skip
    target = services[name].target
    assert target is not None, name
    return Container(services[name], builder.root(target), network, folder / f"{name}.log", terminal)


def show_work(
    services: dict[str, compose.Service], builder: roots.Builder, network: Network, folder: Path,
    running: dict[str, Container],
) -> None:  # fmt: skip
    client = start("client", services, builder, network, folder)
    code = client.await_end()
    print(f"== run client: exit code {code}: {client.tail(1)}", flush=True)
    assert code == 0, client.tail()
    assert "5" in client.tail(1), client.tail()
    tell_attempts(network, "shop.add")
    for metric, mark in (("horsies_up", " 1.0"), ("horsies_workers{", "alive"), ("horsies_scheduler_up", " 1.0")):
        print(f"== scrape exporter: {scraped(network, 'exporter', 10990, metric, mark)}", flush=True)
    for name, port in (("worker", 10991), ("exporter", 10990)):
        for path in ("healthz", "readyz"):
            print(f"== GET {name}:{port}/{path}: {get(network, name, port, path)[0]}", flush=True)
    # sent by the scheduler
    tell_attempts(network, "shop.tick")
    show_dashboard(services, builder, network, folder)
    print(f"== health again: {[name for name, one in running.items() if one.await_health() >= 0]}", flush=True)


def tell_attempts(network: Network, task: str) -> None:
    found = scraped(network, "worker", 10991, "horsies_worker_attempts_ended_total", f'task="{task}"')
    print(f"== scrape worker: {found}", flush=True)


def show_dashboard(
    services: dict[str, compose.Service], builder: roots.Builder, network: Network, folder: Path
) -> None:
    """In a terminal, until it counts the tasks that have ended."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    container = start("dashboard", services, builder, network, folder, theirs)
    os.close(theirs)
    shown = b""

    def look() -> bool:
        nonlocal shown
        container.require_running()
        while select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 65536)
        text = _ESCAPE.sub(b"", shown)
        return b"Overview" in text and re.search(rb"completed [1-9]", text) is not None

    try:
        eventually(look, timeout=60, describe="the dashboard counts completed tasks")
        container.check_locks()
        print("== run dashboard: the overview counts completed tasks", flush=True)
    finally:
        os.close(ours)
        container.kill()


def get(network: Network, name: str, port: int, path: str) -> tuple[int, str]:
    address = dict(reversed(line.split()) for line in network.hosts.read_text().splitlines())[name]
    program = (
        "import sys, urllib.request as u\n"
        "try: answer = u.urlopen(sys.argv[1], timeout=10)\n"
        "except u.HTTPError as error: answer = error\n"
        "print(answer.status); print(answer.read().decode())"
    )
    url = f"http://{address}:{port}/{path}"
    done = subprocess.run(network.inside([sys.executable, "-c", program, url]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    status, _, text = done.stdout.partition("\n")
    return int(status), text


def scraped(network: Network, name: str, port: int, metric: str, mark: str) -> str:
    """The first sample of a metric that has the mark, once it is there and not zero."""

    def look() -> str | None:
        lines = get(network, name, port, "metrics")[1].splitlines()
        return next(
            (line for line in lines if line.startswith(metric) and mark in line and not line.endswith(" 0.0")), None
        )

    found = eventually(look, timeout=60, interval=1, describe=f"{metric} of {name} with {mark}")
    assert found is not None
    return found


if __name__ == "__main__":
    sys.exit(main())
