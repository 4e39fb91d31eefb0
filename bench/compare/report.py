"""What a run prints: a block per metric and the table of targets on the terminal, the same as Markdown for the docs."""

from bench.compare.results import METRICS, Metric, Results
from bench.compare.systems import BARE_SQL, HORSIES, PEERS
from bench.compare.targets import TARGETS, check, figure

ORDER = [HORSIES.name, BARE_SQL, *(peer.name for peer in PEERS)]
VERDICTS = {True: "holds", False: "**missed**", None: "–"}


def text(results: Results) -> str:
    lines: list[str] = []
    for key, metric in _measured(results):
        ours = results.median(key)
        lines += ["", f"{metric}; {'more' if metric.more_is_better else 'less'} is better"]
        for name in (name for name in ORDER if name in results.samples[key]):
            ratio = f"{(results.median(key, name) or 0) / ours:8.2f}x horsies" if ours and name != HORSIES.name else ""
            lines.append(f"  {name:14} {_cell(results, key, name):32} n={len(results.samples[key][name])} {ratio}")
    lines += ["", *(f"left out: {name}: {reason}" for name, reason in results.left_out.items())]
    lines += [f"failed: {failure}" for failure in results.failures]
    load = max(results.load_average_before_each_round, default=0)
    lines += [f"Targets ({results.mode} run, medians, load average at most {load:.1f})"]
    for target in TARGETS:
        measured, holds = check(target, results)
        lines.append(f"  {target.number:3} {target.what:72} {target.bar:7} {measured:42} {VERDICTS[holds]}")
    return "\n".join(lines)


def markdown(results: Results) -> str:
    names = [name for name in ORDER if any(name in systems for systems in results.samples.values())]
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    alone = ["", "| horsies alone | |", "|---|---|"]
    for key, metric in _measured(results):
        if set(results.samples[key]) == {HORSIES.name}:
            alone.append(f"| {metric} | {_cell(results, key, HORSIES.name)} |")
        else:
            lines.append(f"| {metric} | {' | '.join(_cell(results, key, name) for name in names)} |")
    lines += [*alone, "", "| | Target | Limit | Measured | |", "|---|---|---|---|---|"]
    for target in TARGETS:
        measured, holds = check(target, results)
        lines.append(f"| {target.number} | {target.what} | {target.bar} | {measured} | {VERDICTS[holds]} |")
    return "\n".join(lines)


def _measured(results: Results) -> list[tuple[str, Metric]]:
    return [(key, metric) for key, metric in METRICS.items() if key in results.samples]


def _cell(results: Results, key: str, name: str) -> str:
    """The median, and in brackets the smallest and the largest sample."""
    values, median = results.samples[key].get(name, []), results.median(key, name)
    spread = f" ({figure(min(values))}–{figure(max(values))})" if len(values) > 1 else ""
    return "–" if median is None else f"{figure(median)}{spread}"
