#!/usr/bin/env python3
"""Tables and plots of what bench.py measured.

report.py FILE.json                 prints the table
report.py FILE.json --plot FILE.svg draws it
"""

import argparse
import json
import math
import statistics
from xml.sax.saxutils import escape

# ---- arithmetic ----


def spread(values):
    """Largest difference from the median, as a part of it.

    >>> spread([90, 100, 130]), spread([5])
    (0.3, 0.0)
    """
    middle = statistics.median(values)
    return max(abs(value - middle) for value in values) / middle if middle else 0.0


def ratio(value, against):
    """None where one of them is missing.

    >>> ratio(3.0, 2.0), ratio(None, 2.0), ratio(3.0, 0)
    (1.5, None, None)
    """
    return value / against if value is not None and against else None


def figure_text(value):
    """Three digits, or more when they are before the point.

    >>> [figure_text(v) for v in (None, 0.01234, 1.2345, 45.67, 456.7, 1256.7)]
    ['-', '0.012', '1.23', '45.7', '457', '1257']
    """
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


# ---- the table ----

OWN = "residentfs"
SUFFIX_OF_TRANSPORT = {"io_uring": "-uring"}


def variants(row):
    """The names of residentfs in this row: one for each way of mounting it that was measured."""
    return [name for name in row["results"] if name.startswith(OWN)]


def rival(variant, against):
    """What a figure of VARIANT is compared with: a null daemon on the same transport.

    >>> rival("residentfs-uring", "null"), rival("residentfs", "null"), rival("residentfs-uring", "tmpfs")
    ('null-uring', 'null', 'tmpfs')
    """
    return "null" + variant.removeprefix(OWN).replace("-cached", "") if against == "null" else against


def value_of(row, name):
    return row["results"].get(name, {}).get("value")


def compared_with(data):
    """What there are columns for, besides residentfs."""
    return ["tmpfs", "null", "bus", *data["peers"]]


class Table:
    """Prints rows as they come."""

    NAME = 56

    def __init__(self, data):
        self.others = compared_with(data)

    def _line(self, name, cells):
        print(f"{name:<{self.NAME}}" + "".join(f"{cell:>11}" for cell in cells), flush=True)

    def header(self):
        ratios = [f"/ {name}" for name in self.others]
        self._line("", ["", OWN, *self.others, *ratios, "p50 µs", "p99 µs", "p99.9 µs", "CPU s/GiB"])

    def row(self, row):
        for variant in variants(row):
            result = row["results"][variant]
            name = row["name"] if variant == variants(row)[0] else f"  {variant.removeprefix(OWN + '-')}"
            own = result.get("value")
            values = [value_of(row, rival(variant, other)) for other in self.others]
            cells = [row["unit"], figure_text(own), *map(figure_text, values)]
            cells += [figure_text(ratio(own, value)) for value in values]
            cells += [figure_text(result.get(key)) for key in ("p50_us", "p99_us", "p999_us")]
            self._line(name, [*cells, figure_text(result.get("cpu_seconds_per_gib"))])
        for name, result in row["results"].items():
            if "error" in result or "unable" in result:
                print(f"  {name}: {result.get('error') or result['unable']}", flush=True)


def targets_reached(row):
    """For each target that can be told of: (variant, what it asks for, what was seen, reached)."""
    seen = []
    for variant in variants(row):
        transport = "io_uring" if variant.endswith(SUFFIX_OF_TRANSPORT["io_uring"]) else "descriptor"
        for target in row["targets"]:
            own, against = value_of(row, variant), target["against"]
            if own is None or target["transport"] not in (None, transport):
                continue
            got = ratio(own, value_of(row, rival(variant, against))) if against else own
            if got is not None:
                unit = f"× {rival(variant, against)}" if against else row["unit"]
                seen.append((variant, f"{target['factor']:g} {unit}", got, got >= target["factor"]))
    return seen


def print_targets(data):
    for row in data["rows"]:
        for variant, asked, got, reached in targets_reached(row):
            print(f"{'reached' if reached else 'below  '}  {figure_text(got):>6} of {asked:<18} {variant}: {row['name']}")


def rounds_text(settings):
    """
    >>> rounds_text({"rounds": 1}), rounds_text({"rounds": 3})
    ('1 round', '3 rounds')
    """
    return f"{settings['rounds']} round{'s' if settings['rounds'] != 1 else ''}"


def print_head(data):
    machine, versions, settings = data["machine"], data["versions"], data["settings"]
    print(f"{data['date']}  {machine['processor']}, {machine['processors']} processors, Linux {machine['kernel']}")
    print(
        f"{versions.get('device_name', data['device'])}, driver {versions.get('driver_version', '?')}, "
        f"libfuse {versions.get('libfuse', '?')}; medians of {rounds_text(settings)} of {settings['seconds']} s, "
        f"files of {settings['file_bytes'] >> 20} MiB"
    )
    print(f"command: {data['command']}", flush=True)


def print_table(data):
    print_head(data)
    table = Table(data)
    table.header()
    for row in data["rows"]:
        table.row(row)
    print_targets(data)


# ---- the plot ----

COLOURS = {
    "residentfs": "#1f5f8b", "residentfs-uring": "#4f9dc9", "residentfs-cached": "#9cc9e3",
    "tmpfs": "#d0a45c", "null": "#6f6f6f", "null-uring": "#a8a8a8", "bus": "#5f8f4e",
}
PEER_COLOURS = ["#a65c85", "#c65f4a", "#7d6bb0", "#8a6d3b"]
BAR, GAP, LEFT, WIDTH, RIGHT = 13, 14, 380, 560, 80
PANEL_TITLES = {"GB/s": "Throughput, GB/s (logarithmic)", "k/s": "Requests, thousands a second (logarithmic)"}


def axis(values):
    """Powers of ten around the values.

    >>> axis([3.2, 57]), axis([0.5]), axis([10, 1000])
    ((0, 2), (-1, 0), (1, 3))
    """
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def colour_of(name, names):
    peers = [other for other in names if other not in COLOURS]
    return COLOURS.get(name) or PEER_COLOURS[peers.index(name) % len(PEER_COLOURS)]


def bars_of(row, names):
    return [(name, value_of(row, name)) for name in names if value_of(row, name)]


def draw_panel(out, unit, rows, names, top):
    """Appends to OUT, a list of SVG elements; returns where the panel ends."""
    low, high = axis([value for row in rows for _, value in bars_of(row, names)])

    def x(value):
        return LEFT + WIDTH * min(max((math.log10(value) - low) / (high - low), 0), 1)

    out.append(f'<text x="{LEFT}" y="{top}" class="title">{escape(PANEL_TITLES[unit])}</text>')
    bottom = top + 16 + sum(GAP + BAR * len(bars_of(row, names)) for row in rows)
    for power in range(low, high + 1):
        at = x(10**power)
        out.append(f'<line x1="{at:.1f}" y1="{top + 10}" x2="{at:.1f}" y2="{bottom}" class="grid"/>')
        out.append(f'<text x="{at:.1f}" y="{bottom + 16}" class="tick">{10**power:g}</text>')
    y = top + 16
    for row in rows:
        bars = bars_of(row, names)
        middle = y + BAR * len(bars) / 2 + 4
        out.append(f'<text x="{LEFT - 8}" y="{middle:.1f}" class="row">{escape(row["name"])}</text>')
        for name, value in bars:
            # A value at the very start of the axis still has a bar.
            width = max(x(value) - LEFT, 1)
            out.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" '
                       f'fill="{colour_of(name, names)}"/>')
            out.append(f'<text x="{LEFT + width + 4:.1f}" y="{y + BAR - 4}" class="value">{figure_text(value)}</text>')
            y += BAR
        y += GAP
    out.append(f'<text x="{LEFT + WIDTH / 2}" y="{bottom + 32}" class="unit">{escape(unit)}</text>')
    return bottom + 62


def svg(data, rows_at_most=24):
    """The first rows, as one picture."""
    rows = [row for row in data["rows"] if any(value_of(row, name) for name in variants(row))]
    panels = {unit: [row for row in rows if row["unit"] == unit][: rows_at_most // 2] for unit in PANEL_TITLES}
    shown = [name for row in rows for name in row["results"]]
    # In the order of the first row, residentfs in front.
    names = sorted(dict.fromkeys(shown), key=lambda name: not name.startswith(OWN))
    total = LEFT + WIDTH + RIGHT
    out = []
    machine, versions = data["machine"], data["versions"]
    title = f"residentfs on {versions.get('device_name', data['device'])}"
    text = (f"{machine['processor']}, Linux {machine['kernel']}, libfuse {versions.get('libfuse', '?')}, "
            f"{data['date'][:10]}; medians of {rounds_text(data['settings'])}")
    out.append(f'<text x="20" y="28" class="title">{escape(title)}</text>')
    out.append(f'<text x="20" y="46" class="note">{escape(text)}</text>')
    left = 20
    for name in names:
        out.append(f'<rect x="{left}" y="60" width="11" height="11" fill="{colour_of(name, names)}"/>')
        out.append(f'<text x="{left + 16}" y="70" class="note">{escape(name)}</text>')
        left += 32 + 8 * len(name)
    y = 104
    for unit, chosen in panels.items():
        if chosen:
            y = draw_panel(out, unit, chosen, names, y)
    style = ("text{font-family:sans-serif;font-size:12px;fill:#222}.title{font-size:15px;font-weight:bold}"
             ".row{text-anchor:end}.tick,.unit{text-anchor:middle;fill:#555}.value{font-size:10px;fill:#444}"
             ".grid{stroke:#ddd}.note{fill:#444}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(total, left)}" height="{y}" '
            f'viewBox="0 0 {max(total, left)} {y}"><style>{style}</style>'
            f'<rect width="100%" height="100%" fill="#fff"/>' + "\n".join(out) + "</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--plot", metavar="FILE.svg")
    arguments = parser.parse_args()
    with open(arguments.file, encoding="utf-8") as file:
        data = json.load(file)
    if arguments.plot:
        with open(arguments.plot, "w", encoding="utf-8") as file:
            file.write(svg(data))
    else:
        print_table(data)


if __name__ == "__main__":
    main()
