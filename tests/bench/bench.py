#!/usr/bin/env python3
"""Measures residentfs side by side with a tmpfs, a FUSE daemon that does nothing (the transport's
ceiling), copies on the bus alone (the device's ceiling), and other mounts.

What is compared takes turns within a row, round by round; figures are medians of the rounds. Where libfuse, kernel
and residentfs have io_uring, residentfs and the daemon that does nothing are measured with it, too. Rows are printed
as they come, the most important ones first, and the JSON file is whole after each.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict

import report
import rows as catalogue
from rows import GIB, MIB
from subjects import Bus, Daemon, Failure, Peer, Tmpfs, Unable, available_memory

FORMAT = 1  # of the JSON file
# Seconds of a load, rounds, largest file.
SELECTIONS = {"full": (0.4, 3, 8 * GIB), "quick": (0.5, 3, 8 * GIB), "short": (0.01, 1, 128 * MIB)}
SMALLEST_FILE = 128 * MIB  # 1024 scattered writes; 16 clients of 8 MiB each
URING_SETTING = "/sys/module/fuse/parameters/enable_uring"


class Usage(Exception):
    pass


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="tests/bench/run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default=os.environ.get("DEVICE", "emulated"), help="as of residentfs; default: emulated")
    parser.add_argument("--build", metavar="DIR", help="a build folder, or one with the programs in it; otherwise build/ is built")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--quick", dest="selection", action="store_const", const="quick", help="the targets and a few more")
    chosen.add_argument("--short", dest="selection", action="store_const", const="short", help="one row of each kind, for a moment: whether it all works")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=DIR", help="another file system, mounted there")
    parser.add_argument("--options", default="", metavar="OPT,…", help="-o of residentfs; the daemon that does nothing takes those on the transport")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.svg")
    parser.add_argument("--rows", default="", metavar="REGEX", help="only rows of such a name")
    parser.add_argument("--seconds", type=float, help="of one load")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="no row starts later (quick: 210)")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and end")
    arguments = parser.parse_args()
    arguments.selection = arguments.selection or "full"
    return arguments


class Settings:
    """How much is measured."""

    def __init__(self, arguments):
        seconds, rounds, self.largest_file = SELECTIONS[arguments.selection]
        self.seconds = arguments.seconds or seconds
        self.rounds = arguments.rounds or rounds
        self.milliseconds = max(round(self.seconds * 1000), 1)
        self.file_bytes = self.largest_file
        self.limit = arguments.limit or (210 if arguments.selection == "quick" else None)

    def fit_file(self, free_bytes, times):
        """The largest power of two of which there is room for so many."""
        while self.file_bytes > SMALLEST_FILE and self.file_bytes * times > free_bytes:
            self.file_bytes //= 2


# ---- what there is ----


def program(build, name, folder):
    for path in (os.path.join(build, name), os.path.join(build, folder, name)):
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise Usage(f"no program {name} in {build}")


def parse_peers(texts):
    peers = {}
    for text in texts:
        name, _, folder = text.partition("=")
        if not re.fullmatch(r"[\w.-]+", name) or not os.path.isdir(folder):
            raise Usage(f"--peer {text}: not NAME=DIR, with a folder that is there")
        if name in peers or name.startswith(("residentfs", "null")) or name in ("tmpfs", "bus"):
            raise Usage(f"--peer {text}: that name is taken")
        peers[name] = folder
    return peers


def has_io_uring(residentfs):
    """Whether the daemon's libfuse has it, and the kernel lets it be used."""
    done = subprocess.run([residentfs, "--version"], capture_output=True, text=True, check=False)
    built = re.search(r"built for (\d+)\.(\d+)", done.stdout)
    try:
        with open(URING_SETTING, encoding="ascii") as file:
            enabled = file.read().strip() == "Y"
    except OSError:
        enabled = False
    return enabled and built is not None and (int(built[1]), int(built[2])) >= (3, 18)


def make_subjects(arguments, settings, scratch):
    build = arguments.build
    residentfs = program(build, "residentfs", ".")
    null_fuse = program(build, "null_fuse", "tests/bench")
    io_load = program(build, "io_load", "tests/bench")
    options = [option for option in arguments.options.split(",") if option]
    transport = [o for o in options if o.split("=")[0] in ("max_write", "workers", "max_background", "busy_poll")]
    uring = has_io_uring(residentfs)

    def mount(name, command, its_options, cached=False):
        return Daemon(name, os.path.join(scratch, name), io_load, settings, command, its_options, cached)

    own, null = [residentfs, arguments.device], [null_fuse]
    plain = ["io_uring=off"]
    subjects = [mount("residentfs", own, options + plain)]
    if uring:
        subjects.append(mount("residentfs-uring", own, [*options, "io_uring=on"]))
    subjects.append(mount("residentfs-cached", own, [*options, *plain, "cache=on"], cached=True))
    subjects.append(Tmpfs("tmpfs", os.path.join(scratch, "tmpfs"), io_load, settings))
    subjects.append(mount("null", null, transport))
    if uring:
        subjects.append(mount("null-uring", null, [*transport, "io_uring=on"]))
    subjects.append(Bus(program(build, "bus_load", "tests/bench"), arguments.device, settings))
    return subjects, io_load


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = re.findall(r"^model name\s*:\s*(.*)$", file.read(), re.MULTILINE)
    return {
        "processor": models[0] if models else platform.machine(),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
    }


# ---- measuring ----


def figures(row, raw):
    """What a round says: the row's own figure, latencies, processor time."""
    result = {key: value for key, value in raw.items() if key.endswith("_us") or key == "value"}
    if "value" not in raw:
        amount = raw["bytes"] / 1e9 if row.unit == "GB/s" else raw["requests"] / 1e3
        result["value"] = amount / max(raw["seconds"], 1e-9)
        result["cpu_seconds"] = raw["cpu_seconds"] + raw.get("daemon_cpu_seconds", 0)
        result["daemon_cpu_seconds"] = raw.get("daemon_cpu_seconds")
        if raw["bytes"]:
            result["cpu_seconds_per_gib"] = result["cpu_seconds"] / (raw["bytes"] / GIB)
        result["cpu_us_per_request"] = result["cpu_seconds"] * 1e6 / max(raw["requests"], 1)
    return result


def summary(rounds):
    """Medians of all rounds.

    >>> summary([{"value": 1.0}, {"value": 9.0}, {"value": 2.0}])["value"]
    2.0
    """
    keys = {key for one in rounds for key, value in one.items() if value is not None}
    result = {key: statistics.median([one[key] for one in rounds if one.get(key) is not None]) for key in sorted(keys)}
    result["spread"] = report.spread([one["value"] for one in rounds])
    result["rounds"] = rounds
    return result


class Benchmark:
    def __init__(self, arguments, subjects, settings, data):
        self.arguments, self.subjects, self.settings, self.data = arguments, subjects, settings, data
        self.failed = False
        self.table = None

    def failure(self, subject, error):
        """What a peer cannot do is its own affair."""
        if not isinstance(error, Unable) and not isinstance(subject, Peer):
            self.failed = True
        return {"unable" if isinstance(error, Unable) else "error": str(error)}

    def measure_once(self, subject, step, rounds):
        """One round of all rows of a step; appends to ROUNDS, a list per row."""
        subject.start()
        subject.prepare(step)
        for row, taken in zip(step.rows, rounds):
            if row.bus if isinstance(subject, Bus) else subject.can(row):
                measured = subject.measure(row, step)
                if measured is not None:
                    taken.append(figures(row, measured))

    def run_step(self, step):
        taking = [subject for subject in self.subjects if subject.takes(step)]
        if any(row.cached for row in step.rows):
            taking += [s for s in self.subjects if s.name == "tmpfs" or isinstance(s, Peer)]
        rounds = {subject: [[] for _ in step.rows] for subject in taking}
        errors = {}
        for _ in range(step.rounds or self.settings.rounds):
            for subject in taking:
                if subject in errors:
                    continue
                try:
                    self.measure_once(subject, step, rounds[subject])
                except (Failure, Unable, OSError) as error:
                    errors[subject] = self.failure(subject, error)
        for subject in taking:
            try:
                subject.clean(step)
            except OSError as error:
                errors.setdefault(subject, self.failure(subject, error))
        for number, row in enumerate(step.rows):
            results = {}
            for subject in taking:
                if rounds[subject][number]:
                    results[subject.name] = summary(rounds[subject][number])
                if subject in errors and len(rounds[subject][number]) < (step.rounds or self.settings.rounds):
                    results.setdefault(subject.name, {}).update(errors[subject])
            self.add(row, results)

    def add(self, row, results):
        targets = [asdict(target) for target in row.targets]
        entry = {"name": row.name, "load": row.load, "parameters": row.parameters, "unit": row.unit,
                 "targets": targets, "results": results}
        for variant in report.variants(entry):
            ratios = {other: report.ratio(report.value_of(entry, variant), report.value_of(entry, report.rival(variant, other)))
                      for other in report.compared_with(self.data)}
            results[variant]["ratios"] = {other: value for other, value in ratios.items() if value is not None}
        self.data["rows"].append(entry)
        self.table.row(entry)
        self.save()

    def save(self):
        if self.arguments.json:
            with open(self.arguments.json + ".new", "w", encoding="utf-8") as file:
                json.dump(self.data, file, indent=1)
            os.replace(self.arguments.json + ".new", self.arguments.json)

    def run(self, steps):
        begin = time.monotonic()
        self.table = report.Table(self.data)
        self.table.header()
        for step in steps:
            if self.settings.limit and time.monotonic() - begin > self.settings.limit:
                print(f"stopped after {self.settings.limit:g} s, before: {step.rows[0].name}")
                break
            self.run_step(step)
        if self.arguments.selection != "short":
            report.print_targets(self.data)
        for subject in self.subjects:
            for line in subject.errors()[:5] if isinstance(subject, Daemon) else ():
                print(f"{subject.name} has logged: {line}")
                self.failed = True
        if self.arguments.plot and self.data["rows"]:
            with open(self.arguments.plot, "w", encoding="utf-8") as file:
                file.write(report.svg(self.data))


def describe(arguments, settings, subjects, peers):
    own = subjects[0]
    return {
        "format": FORMAT,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(["tests/bench/run.sh", *sys.argv[1:]]),
        "device": arguments.device,
        "machine": machine(),
        "versions": own.version(),
        "settings": {"selection": arguments.selection, "seconds": settings.seconds, "rounds": settings.rounds,
                     "file_bytes": settings.file_bytes, "options": arguments.options},
        "subjects": {s.name: {"options": getattr(s, "options", None)} for s in subjects},
        "peers": list(peers),
        "rows": [],
    }


def on_signal(number, _frame):
    raise SystemExit(128 + number)


def main():
    arguments = parse_arguments()
    pattern = re.compile(arguments.rows)
    steps = [s for s in catalogue.steps(arguments.selection) if any(pattern.search(row.name) for row in s.rows)]
    if arguments.list:
        print("\n".join(row.name for step in steps for row in step.rows))
        return 0
    if not arguments.build:
        raise Usage("--build is needed")
    if not steps:
        raise Usage(f"--rows {arguments.rows}: no row has such a name; see --list")
    settings = Settings(arguments)
    peers = parse_peers(arguments.peer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    scratch, subjects, status = tempfile.mkdtemp(prefix="residentfs-bench."), [], 1
    try:
        subjects, io_load = make_subjects(arguments, settings, scratch)
        subjects += [Peer(name, folder, io_load, settings) for name, folder in peers.items()]
        subjects[0].start()
        # A mount has a file, its copy, and as much in many files; up to three mounts and the bus share the device.
        settings.fit_file(subjects[0].free_bytes(), 10)
        settings.fit_file(available_memory() // 2, 14 if arguments.device.startswith("emulated") else 4)
        for subject in subjects:
            if isinstance(subject, Peer):
                settings.fit_file(subject.free_bytes(), 4)
        data = describe(arguments, settings, subjects, peers)
        benchmark = Benchmark(arguments, subjects, settings, data)
        report.print_head(data)
        benchmark.run(steps)
        status = 1 if benchmark.failed else 0
    except Failure as failure:
        print(f"tests/bench/run.sh: {failure}", file=sys.stderr)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for subject in reversed(subjects):
            if not subject.stop():
                status = 1
        shutil.rmtree(scratch, ignore_errors=True)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Usage, re.error) as wrong:
        print(f"tests/bench/run.sh: {wrong}", file=sys.stderr)
        sys.exit(2)
