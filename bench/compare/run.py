"""The two runs: `quick`, a few minutes, and `full`. Rounds are interleaved and turn the order each time."""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import psycopg

from bench.compare import adverse, observe, plots, report, visits
from bench.compare.install import Absent, install_all, interpreter, versions
from bench.compare.results import SCALES, Results, read, scale_title
from bench.compare.servers import Servers, running
from bench.compare.station import Failed
from bench.compare.table import HORSIES, PEERS, System, find

RESULTS = Path(__file__).parents[1] / "results"
SCENARIOS = (
    "core", "async", "sleep1", "sleep50", "later", "transaction", "costs", "scaling", "tables", "pinned", "pooled",
    "killed", "payloads",
)  # fmt: skip
QUICK = ("core", "async")


def main(mode: str, arguments: Sequence[str]) -> int:
    if mode == "peers":
        install_all()
        return 0
    if mode == "report":
        return _report(arguments)
    parser = argparse.ArgumentParser(prog=f"bench {mode}", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2 if mode == "quick" else 5)
    parser.add_argument(
        "--scale", type=float, default=0.5 if mode == "quick" else 1.0, help="tasks per drain, times this"
    )
    parser.add_argument("--peers", type=find, help="only these, by name (default: all that are installed)")
    parser.add_argument("--scenarios", type=_scenarios, help=f"only these: {', '.join(SCENARIOS)}")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the full tables; 10000000 takes its time")
    parser.add_argument("--pin-seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=RESULTS / f"{mode}.json")
    parser.add_argument("--plots", type=Path, default=RESULTS)
    parser.add_argument("--add-to", type=Path, help="a run's JSON whose samples this one continues")
    options = parser.parse_args(arguments)
    if options.output.is_dir():
        parser.error(f"--output {options.output} is a directory: name a file in it")
    results = read(options.add_to) if options.add_to else Results(mode)
    began = time.monotonic()
    try:
        with running() as servers:
            _Run(results, servers, options, mode).everything()
    except KeyboardInterrupt:
        results.failures.append("interrupted")
    finally:
        results.write(options.output)
    plots.draw(results, options.plots)
    print(report.text(results))
    print(f"\n{time.monotonic() - began:.0f} s; samples in {options.output.name}, plots beside it")
    return 1 if results.failures else 0


def _scenarios(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SCENARIOS:
            raise argparse.ArgumentTypeError(f"{name!r} is not a scenario: {', '.join(SCENARIOS)}")
    return names


def _report(arguments: Sequence[str]) -> int:
    """The tables and plots of the documentation, from the JSON of a run."""
    parser = argparse.ArgumentParser(prog="bench report", description=_report.__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("--plots", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    results = read(options.json)
    plots.draw(results, options.plots)
    print(report.markdown(results))
    return 0


class _Run:
    def __init__(self, results: Results, servers: Servers, options: argparse.Namespace, mode: str) -> None:
        self._results, self._servers, self._options = results, servers, options
        self._scenarios = options.scenarios or (QUICK if mode == "quick" else SCENARIOS)
        self._effort = visits.QUICK if mode == "quick" else visits.FULL
        wanted = options.peers if options.peers is not None else PEERS
        if mode == "quick" and options.peers is None:
            wanted = tuple(peer for peer in wanted if not peer.is_reference)  # slow, and in no bar
        self._systems = [self._scaled(system) for system in (HORSIES, *wanted) if self._is_present(system)]

    def everything(self) -> None:
        results, servers, options = self._results, self._servers, self._options
        for system in self._systems:
            results.versions[system.name] = [f"uvloop {_uvloop()}"] if system.name == HORSIES.name else versions(system)
        results.settings = {"rounds": options.rounds, "scale": options.scale, "rows": options.rows}
        with servers.connect() as connection:
            results.versions["postgresql"] = [str(connection.info.server_version)]
        on_postgresql = [system for system in self._systems if system.broker == "postgresql"]
        with_async = [system for system in self._systems if system.has_async]
        count, effort = self._scaled(HORSIES).drain, self._effort
        for number in range(options.rounds):
            results.loads.append(observe.load_average())
            turn = number % max(1, len(self._systems))
            systems = self._systems[turn:] + self._systems[:turn]
            self._do(
                "core", "bare SQL", lambda: visits.bare(results, servers, count=count, trips=effort is visits.FULL)
            )
            for system in systems:
                self._do("core", system.name, lambda s=system: visits.core(results, servers, s, effort))
            for system in with_async:
                self._do("async", system.name, lambda s=system: visits.drain(results, servers, s, "anoop"))
            if number >= (options.rounds + 1) // 2:
                continue  # the long scenarios get half the rounds
            for system in systems:
                self._do("sleep1", system.name, lambda s=system: visits.drain(results, servers, s, "sleep1"))
                self._do("sleep50", system.name, lambda s=system: visits.sleeping(results, servers, s))
                self._do("later", system.name, lambda s=system: visits.later(results, servers, s))
            for system in on_postgresql:
                self._do("transaction", system.name, lambda s=system: visits.transaction(results, servers, s))
                self._do("costs", system.name, lambda s=system: visits.costs(results, servers, s))
            for processes, copies in SCALES:
                title = scale_title(processes, copies)
                self._do("scaling", title, lambda p=processes, c=copies: visits.scaling(results, servers, p, c, count))
            results.write(options.output)
        self._alone(count)

    def _alone(self, count: int) -> None:
        """What only horsies is put through."""
        results, servers, options = self._results, self._servers, self._options
        rounds = max(2, options.rounds - 1)
        self._do(
            # to fill them takes longer than to drain them a few times more
            "tables",
            "",
            lambda: adverse.full_tables(results, servers, rounds=6, count=count, rows=options.rows),
        )
        self._do("pinned", "", lambda: adverse.pinned(results, servers, seconds=options.pin_seconds, count=count))
        self._do("pooled", "", lambda: adverse.pooled(results, servers, rounds=rounds, count=count))
        self._do("killed", "", lambda: adverse.killed(results, servers, count=3_000))
        self._do("payloads", "", lambda: adverse.payloads(results, servers, rounds=rounds))

    def _do(self, scenario: str, who: str, action: Callable[[], None]) -> None:
        """One measurement; what fails is told and does not end the run."""
        if scenario not in self._scenarios:
            return
        began = time.monotonic()
        try:
            action()
            print(f"{scenario} {who} ({time.monotonic() - began:.0f} s)", flush=True)
        except Absent as reason:
            self._results.absent[f"{scenario} {who}".strip()] = str(reason)
        except (Failed, observe.Stuck, TimeoutError, OSError, psycopg.Error) as error:
            self._results.failures.append(f"{scenario} {who}: {error}")
            print(f"{scenario} {who} failed: {error}", flush=True)

    def _is_present(self, system: System) -> bool:
        try:
            interpreter(system)
            if system.broker == "redis" and self._servers.redis_port is None:
                raise Absent(self._servers.redis_absent or "no Redis")
        except Absent as reason:
            self._results.absent[system.name] = str(reason)
            return False
        return True

    def _scaled(self, system: System) -> System:
        return replace(system, drain=max(100, int(system.drain * self._options.scale)))


def _uvloop() -> str:
    """The worker uses it where it is installed, and `just bench` installs it, as for the peers that profit from it."""
    try:
        return metadata.version("uvloop")
    except metadata.PackageNotFoundError:
        return "absent"
