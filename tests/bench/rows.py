"""The rows of the benchmark, the most important ones first."""

from dataclasses import dataclass, field

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

MANY_FILES = 16  # as many as clients, at most
NAME_CLIENTS = 4


def size_text(size):
    """
    >>> size_text(4096), size_text(1 << 20), size_text(3 << 29), size_text(100)
    ('4 KiB', '1 MiB', '1536 MiB', '100 bytes')
    """
    for unit, text in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size % unit == 0 and size:
            return f"{size // unit} {text}"
    return f"{size} bytes"


@dataclass
class Target:
    """At least FACTOR times the figure of AGAINST in the same row; None: FACTOR in the row's unit.
    TRANSPORT "io_uring": only of residentfs through that; "descriptor": only without it."""

    factor: float
    against: str | None = None
    transport: str | None = None


@dataclass
class Row:
    name: str
    load: str  # of io_load; "memory": what the daemon holds for the files that were made before
    unit: str  # GB/s, k/s, or bytes
    parameters: dict = field(default_factory=dict)  # of the load; file= is filled in
    bus: dict | None = None  # load and parameters of bus_load, as the ceiling
    targets: list = field(default_factory=list)
    cached: bool = False  # on a mount with cache=on instead


@dataclass
class Step:
    """Rows that are measured one after the other on one file system before it is the next one's turn."""

    rows: list
    # "one": file 0; "copy": that and its copy; "many": files 1 to MANY_FILES.
    needs: str = ""
    file_bytes: int = 0  # file 0 is made anew by the first row, with this size
    rounds: int | None = None  # when not the usual number


def io_row(op, block, clients, many=False, random=False, sync_each=False, targets=(), cached=False):
    name = (
        f"{'random' if random else 'sequential'} {op} {size_text(block)}, "
        f"{clients} client{'s' if clients > 1 else ''}{', many files' if many else ''}"
        f"{', fsync each' if sync_each else ''}{', page cache' if cached else ''}"
    )
    parameters = {"block": block, "clients": clients}
    for key, value in (("random", random), ("many", many), ("sync_each", sync_each)):
        if value:
            parameters[key] = 1
    # Small writes may be gathered, so small copies of the bus are no ceiling for them.
    bus = None
    if not sync_each and not cached and (block >= MIB or op == "read"):
        fence = 64 * MIB // block if block >= MIB else 1
        bus = {"load": op, "block": block, "clients": clients, "fence": fence}
    row = Row(name, op, "GB/s" if block >= 128 * KIB else "k/s", parameters, bus, list(targets), cached)
    return Step([row], "many" if many else "one")


def with_peer(targets, single):
    """What is asked for against a vramfs given as a peer."""
    return [*targets, Target(2.5 if single else 10, "vramfs")]


def target_steps():
    absolute = {
        "read": [Target(300, None, "descriptor"), Target(450, None, "io_uring")],
        "write": [Target(300, None, "descriptor"), Target(600, None, "io_uring")],
    }
    return [
        io_row("write", MIB, 1, targets=with_peer([Target(1.3, "tmpfs"), Target(0.85, "null")], True)),
        io_row("read", MIB, 1, targets=with_peer([Target(0.9, "tmpfs"), Target(0.85, "null")], True)),
        io_row("write", MIB, 8, targets=with_peer([Target(8, "tmpfs"), Target(0.8, "bus")], False)),
        io_row("read", MIB, 8, targets=with_peer([Target(0.85, "null")], False)),
        io_row("write", 4 * KIB, 1, targets=with_peer([Target(0.85, "null")], True)),
        io_row("read", 4 * KIB, 1, targets=[Target(0.6, "null")]),
        io_row("read", 4 * KIB, 8, random=True, targets=with_peer(absolute["read"], False)),
        io_row("write", 4 * KIB, 8, random=True, targets=with_peer(absolute["write"], False)),
        Step(
            [
                Row(
                    "1024 scattered writes of 64 KiB and fsync, 16 clients",
                    "scattered",
                    "GB/s",
                    {"block": 64 * KIB, "count": 1024, "clients": 16},
                    {"load": "scattered", "block": 64 * KIB, "count": 1024},
                    [Target(0.7, "bus")],
                )
            ],
            "one",
        ),
        Step(
            [
                Row(
                    "copy_file_range over a file",
                    "copy",
                    "GB/s",
                    {"block": 2 * GIB, "clients": 1},
                    {"load": "copy"},
                    [Target(500)],
                )
            ],
            "copy",
        ),
        io_row("read", 4 * KIB, 1, cached=True, targets=[Target(400)]),
    ]


def name_step(count, memory, rounds=None):
    parameters = {"count": count, "clients": NAME_CLIENTS}
    rows = [
        Row(f"{load}, {count} files, {NAME_CLIENTS} clients", load, "k/s", parameters)
        for load in ("create", "stat", "readdir", "unlink")
    ]
    if memory:
        rows.insert(1, Row(f"memory of the daemon per file, {count} files", "memory", "bytes", parameters))
    return Step(rows, rounds=rounds)


def growth_step(size):
    text = size_text(size)
    rows = [
        Row(f"write a new file of {text}", "write", "GB/s", {"block": MIB, "clients": 1, "ms": 0}),
        Row(f"random read 4 KiB of {text}, 8 clients", "read", "k/s", {"block": 4 * KIB, "clients": 8, "random": 1}),
    ]
    return Step(rows, file_bytes=size, rounds=1)


def more_steps():
    """What --quick has besides the targets."""
    fresh = {"block": 2 * GIB, "clients": 1, "fresh": 1, "ms": 0}
    return [
        name_step(10_000, memory=True),
        Step([Row("copy_file_range to a new file", "copy", "GB/s", fresh)], "one"),
        io_row("write", 4 * KIB, 1, sync_each=True),
        io_row("write", 4 * KIB, 16, sync_each=True),
        io_row("write", 128 * KIB, 8),
        io_row("read", 128 * KIB, 8),
    ]


def matrix_steps(block_sizes=(4 * KIB, 128 * KIB, MIB, 8 * MIB), client_counts=(1, 4, 8, 16)):
    steps = [io_row("write", MIB, 16, sync_each=True), io_row("write", MIB, 8, many=True, sync_each=True)]
    for many in (False, True):
        for random in (False, True):
            for block in block_sizes:
                for clients in client_counts:
                    if many and clients == 1:
                        continue  # the same as one file
                    for op in ("write", "read"):
                        steps.append(io_row(op, block, clients, many, random))
    return steps


def growth_steps():
    sizes = [growth_step(size * GIB) for size in (1, 4, 16, 64)]
    names = [name_step(1_000, memory=False), name_step(100_000, True, 1), name_step(1_000_000, True, 1)]
    return sizes + names


def steps(selection):
    """SELECTION is "quick", "full" or "short" (each kind of row, for a test). No row comes twice."""
    chosen = target_steps() + more_steps()
    if selection == "full":
        chosen += growth_steps() + matrix_steps()
    if selection == "short":
        chosen += [growth_step(256 * MIB)] + matrix_steps((4 * KIB, 8 * MIB), (4,))
    seen, result = set(), []
    for step in chosen:
        names = {row.name for row in step.rows}
        if not names & seen:
            result.append(step)
        seen |= names
    return result
