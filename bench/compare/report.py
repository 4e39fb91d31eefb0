"""What a run says on the terminal: a block per metric, then the must-show table."""

from bench.compare.bars import bars, figure
from bench.compare.results import METRICS, Metric, Results, order
from bench.compare.table import BARE, HORSIES, PEERS


def text(results: Results) -> str:
    lines: list[str] = []
    for key in [*METRICS, *(key for key in results.samples if key not in METRICS)]:
        if key in results.samples:
            lines += ["", *_block(results, key, METRICS.get(key) or Metric(key, ""))]
    if results.absent:
        lines += ["", "left out"] + [f"  {name:14} {reason}" for name, reason in results.absent.items()]
    if results.failures:
        lines += ["", "failed"] + [f"  {failure}" for failure in results.failures]
    return "\n".join([*lines, "", *_must_show(results)])


def _block(results: Results, key: str, metric: Metric) -> list[str]:
    better = "more" if metric.more_is_better else "less"
    lines = [f"{metric.title}{f' ({metric.unit})' if metric.unit else ''}; {better} is better"]
    for name in order(results.samples[key]):
        values = sorted(results.samples[key][name])
        middle = results.median(key, name)
        assert middle is not None
        ratio = results.ratio(key, HORSIES.name, name)
        versus = f"{ratio:8.2f}x horsies" if ratio is not None and name != HORSIES.name else ""
        spread = f"{figure(values[0])} to {figure(values[-1])}"
        lines.append(f"  {name:14} {figure(middle):>10}   {spread:24} n={len(values)} {versus}")
    return lines


def _must_show(results: Results) -> list[str]:
    lines = [f"Must show ({results.mode} run, medians, load average {max(results.loads, default=0):.1f} at most)"]
    for bar in bars(results):
        verdict = {True: "holds", False: "MISSED", None: "-"}[bar.holds]
        lines.append(f"  {bar.number:3} {bar.what:78} {bar.bar:8} {bar.measured:44} {verdict}")
    return lines


def markdown(results: Results) -> str:
    """The same figures as tables for the documentation."""
    names = [name for name in [HORSIES.name, BARE, *(peer.name for peer in PEERS)] if any(name in s for s in results.samples.values())]  # fmt: skip
    shared = [key for key in METRICS if len(results.samples.get(key, {})) > 1]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for key in shared:
        metric, cells = METRICS[key], []
        for name in names:
            values = sorted(results.samples[key].get(name, []))
            middle = results.median(key, name)
            cells.append("–" if middle is None else f"{figure(middle)}{_spread(values)}")
        lines.append(f"| {metric.title}{f', {metric.unit}' if metric.unit else ''} | {' | '.join(cells)} |")
    alone = [key for key in [*METRICS, *results.samples] if list(results.samples.get(key, {})) == [HORSIES.name]]
    if alone:
        lines += ["", "| horsies alone | |", "|---|---|"]
        for key in dict.fromkeys(alone):
            metric = METRICS.get(key) or Metric(key, "")
            values = sorted(results.samples[key][HORSIES.name])
            middle = results.median(key)
            assert middle is not None
            title = f"{metric.title}{f', {metric.unit}' if metric.unit else ''}"
            lines.append(f"| {title} | {figure(middle)}{_spread(values)} |")
    lines += ["", "| | Must show | Bar | Measured | |", "|---|---|---|---|---|"]
    for bar in bars(results):
        verdict = {True: "holds", False: "**missed**", None: "–"}[bar.holds]
        lines.append(f"| {bar.number} | {bar.what} | {bar.bar} | {bar.measured} | {verdict} |")
    return "\n".join(lines) + "\n"


def _spread(values: list[float]) -> str:
    return f" ({figure(values[0])}–{figure(values[-1])})" if len(values) > 1 else ""
