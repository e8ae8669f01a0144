"""A bench as a table, and time and memory over length as a picture."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from rich.table import Table

from conformance.telling.terminal import plain

FEWEST_ROUNDS = 15
"""Rounds below which quartiles say little."""
COLOURS = ("#1f5fa8", "#b8442c", "#3b7d3b", "#7a4fa0", "#8a6d1d", "#3a8791")
WIDTH, HEIGHT, MARGIN, PANEL = 760, 320, 56, 310
MANY_DECADES = 3
"""From so many on, an axis shows powers of ten alone."""


def bench_tables(result: Mapping[str, Any]) -> list[Table]:
    """A table of each size; `x` is the target's time over the rival's: below 1, the target is faster."""
    tables = []
    for size in result["sizes"]:
        table = Table("rival", "CPU ms", "x CPU", "x wall", "extra MiB", title=_title(result, size))
        for column in table.columns[1:]:
            column.justify = "right"
        for row in size["rivals"]:
            cpu = row["cpu_quartiles"][1] * 1e3
            memory = "-" if row["extra_memory"] is None else f"{row['extra_memory'] / 2**20:.1f}"
            ratios = (_spread(row["cpu_ratio"]), _spread(row["wall_ratio"]))
            cells = (row["source"], f"{cpu:.4g}", *ratios, memory)
            table.add_row(*(plain(cell) for cell in cells))
        tables.append(table)
    return tables


def bench_lines(result: Mapping[str, Any]) -> list[str]:
    """How to read the tables, and what to doubt."""
    request, machine = result["request"], result["machine"]
    threads = ", ".join(f"{name}={value}" for name, value in machine["threads"].items())
    lines = [
        f"x: time of {request['targets'][0]} over the rival's, median of paired rounds (quartiles); "
        "below 1 it is faster",
        f"{machine['processor']}, {machine['cores']} cores; {threads}",
    ]
    busiest = max((x for size in result["sizes"] for x in size["load"] if x is not None), default=0.0)
    if machine["cores"] and busiest > machine["cores"]:
        lines.append(
            f"the load was {busiest:.1f} on {machine['cores']} cores: trust no figure but CPU ratios"
        )
    if request["rounds"] < FEWEST_ROUNDS:
        lines.append(f"{request['rounds']} rounds are few: {FEWEST_ROUNDS} or more make quartiles meaningful")
    return lines


def _title(result: Mapping[str, Any], size: Mapping[str, Any]) -> str:
    request = result["request"]
    shape = ", ".join(str(n) for n in size["shape"])
    keys = "" if size["kv_len"] == size["shape"][2] else f", {size['kv_len']} keys"
    causal = ", causal" if request["is_causal"] else ""
    return f"{request['operation']} ({shape}){keys}{causal}, {request['dtype']}"


def _spread(quartiles: Sequence[float] | None) -> str:
    if quartiles is None:
        return "-"
    lower, median, upper = quartiles
    return f"{median:.2f} ({lower:.2f}-{upper:.2f})"


def bench_svg(result: Mapping[str, Any]) -> str:
    """CPU time and extra memory of each rival over the query length, both axes logarithmic, as one SVG."""
    sizes = result["sizes"]
    lengths = [size["shape"][2] for size in sizes]
    times: dict[str, list[float | None]] = {}
    memories: dict[str, list[float | None]] = {}
    for size in sizes:
        for row in size["rivals"]:
            times.setdefault(row["source"], []).append(row["cpu_quartiles"][1] * 1e3)
            extra = row["extra_memory"]
            memories.setdefault(row["source"], []).append(None if extra is None else extra / 2**20)
    panels = [
        _panel(0, "CPU time of a call, ms", lengths, times),
        _panel(WIDTH - PANEL - MARGIN - 10, "extra memory of a call, MiB", lengths, memories),
    ]
    legend = "".join(
        f'<text x="{MARGIN}" y="{HEIGHT + 16 * i}" fill="{_colour(i)}">{escape(name)}</text>'
        for i, name in enumerate(times)
    )
    batch, heads, _, width = sizes[0]["shape"]
    any_size = {"shape": [batch, heads, "n", width], "kv_len": result["request"].get("kv_len") or "n"}
    title = escape(_title(result, any_size))
    height = HEIGHT + 16 * len(times)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{title}"><rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        f'<text x="{MARGIN}" y="18">{title}</text>{"".join(panels)}{legend}</svg>\n'
    )


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _panel(
    left: int, title: str, lengths: Sequence[int], series: Mapping[str, Sequence[float | None]]
) -> str:
    """One pair of axes with a line for each rival."""
    x0, x1, y0, y1 = left + MARGIN, left + MARGIN + PANEL - 50, HEIGHT - MARGIN, 50
    ticks = _ticks([v for line in series.values() for v in line if v is not None and v > 0])
    low, high = ticks[0], ticks[-1]

    def across(n: float) -> float:
        return _between(n, lengths[0], lengths[-1], x0, x1)

    def up(v: float) -> float:
        return _between(v, low, high, y0, y1)

    parts = [
        *(f'<path d="M{x0} {up(v):.1f}H{x1}" stroke="#ddd"/>' for v in ticks),
        f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#555"/>',
        f'<text x="{x0}" y="{y1 - 12}">{title}</text>',
        *(f'<text x="{across(n):.1f}" y="{y0 + 16}" text-anchor="middle">{n}</text>' for n in lengths),
        f'<text x="{(x0 + x1) / 2}" y="{y0 + 34}" text-anchor="middle">queries</text>',
        *(f'<text x="{x0 - 6}" y="{up(v) + 4:.1f}" text-anchor="end">{_number(v)}</text>' for v in ticks),
    ]
    for i, line in enumerate(series.values()):
        points = [(across(n), up(v)) for n, v in zip(lengths, line, strict=True) if v is not None and v > 0]
        parts.append(_line(points, _colour(i)))
    return "".join(parts)


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers around all values, at least two: powers of ten, and between few of them 2 and 5 as well."""
    low, high = (
        (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))) if values else (0, 1)
    )
    high = max(high, low + 1)
    steps = (1, 2, 5) if high - low < MANY_DECADES else (1,)
    return [step * 10.0**power for power in range(low, high) for step in steps] + [10.0**high]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _line(points: Iterable[tuple[float, float]], colour: str) -> str:
    places = [f"{x:.1f},{y:.1f}" for x, y in points]
    dots = "".join(
        f'<circle cx="{place.partition(",")[0]}" cy="{place.partition(",")[2]}" r="3" fill="{colour}"/>'
        for place in places
    )
    return f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def _between(value: float, low: float, high: float, start: float, stop: float) -> float:
    """Where a value stands between two ends, by its logarithm."""
    if high <= low:
        return (start + stop) / 2
    return start + (stop - start) * math.log(value / low) / math.log(high / low)
