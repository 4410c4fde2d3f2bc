#!/usr/bin/env python3
"""Sharing memory with CUDA programs, on a GPU, with the frameworks that are there.

    tests/gpu/share.py --build BUILD [--device cuda:0] [--logs FOLDER] [--only PART…]

BUILD is a build folder, or a folder with residentfs and libresident.so.1 side by side. Each part is a
process of its own with a limit; whatever fails, the rest goes on. A line for each step, with the
seconds it took; notes are findings that decide nothing. Then a table of the parts, and the last line
is `N passed, N failed`. Tracebacks and the daemon's messages are in FOLDER. With the device
`emulated`, frameworks that are not there are left out, and sizes are small.
"""

import argparse
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))

# PART: seconds. Those of one line run at the same time, the lines one after another.
ROUNDS = (
    # Importing takes most of it.
    {"torch": 90, "torch_expandable": 80, "cupy": 80, "numba": 80, "jax": 80, "lifetime": 40, "vmm": 50},
    {"figures": 40},
    {"daemon_ends": 30, "unmounted": 30},
    {"protection": 30},
)
MODULES = {"torch": "torch", "torch_expandable": "torch", "cupy": "cupy", "numba": "numba", "jax": "jax"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--logs")
    parser.add_argument("--only", nargs="*")
    # For the processes that it starts.
    for name in ("part", "mount", "source", "scratch", "file"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--daemon", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.build = os.path.realpath(options.build)
    options.real = not options.device.startswith("emulated")
    number = re.fullmatch(r"\w+:(\d+)", options.device)
    options.ordinal = int(number[1]) if number else 0
    return options


def find(build, name, *folders):
    for folder in (".", *folders):
        path = os.path.join(build, folder, name)
        if os.path.exists(path):
            return os.path.normpath(path)
    sys.exit(f"no {name} in {build}")


def environment(options):
    """For all that is started."""
    os.environ["RESIDENT_LIBRARY"] = find(options.build, "libresident.so.1", "core/share")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (f"{root}/core/share/python", here, os.environ.get("PYTHONPATH")))
    )
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if options.real:
        os.environ["SHARE_DRIVER"] = "libcuda.so.1"
    else:
        emulated = find(options.build, "libresidentfs-emulated.so", "core/driver")
        os.environ["SHARE_DRIVER"] = os.environ["RESIDENTFS_EMULATED_LIBRARY"] = emulated


def run_part(options):
    """In a process of its own."""
    import share_driver
    import share_frameworks

    options.self = [
        sys.argv[0], "--build", options.build, "--device", options.device,
        "--mount", options.mount or "", "--scratch", options.scratch or "",
    ]
    parts = {**share_driver.PARTS, **share_frameworks.PARTS}
    parts[options.part](options.mount, options)


class Results:
    def __init__(self):
        self.counts = {}
        self.failures = []

    def add(self, part, kind, name, seconds=0.0, detail=""):
        counts = self.counts.setdefault(part, {"ok": 0, "not ok": 0, "note": 0, "skip": 0, "seconds": 0})
        counts[kind] += 1
        counts["seconds"] += seconds
        detail = " ".join(str(detail).split())
        print(f"{kind:6} {seconds:6.2f} s  {part}: {name}{' — ' if detail else ''}{detail}", flush=True)
        if kind == "not ok":
            self.failures.append(f"{part}: {name}: {detail[:160]}")


class Mount:
    """A daemon and its mount point."""

    def __init__(self, options, folder, log):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.log = open(log, "ab")
        self.process = subprocess.Popen(
            [find(options.build, "residentfs"), options.device, folder, "-f"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
        )
        end = time.monotonic() + 20
        while not os.path.exists(f"{folder}/.resident/version"):
            if self.process.poll() is not None or time.monotonic() > end:
                self.end()
                raise RuntimeError(f"{options.device} was not mounted: see {log}")
            time.sleep(0.02)

    def unmount(self):
        return subprocess.run(["umount", self.folder], capture_output=True, text=True, timeout=20)

    def end(self):
        """True if it ended well."""
        if os.path.ismount(self.folder) and self.unmount().returncode != 0:
            subprocess.run(["umount", "-l", self.folder], check=False)
        try:
            return self.process.wait(20) == 0
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        finally:
            self.log.close()


def start(options, part, mount, **more):
    command = [sys.executable, "-X", "faulthandler", os.path.abspath(__file__), "--part", part,
               "--build", options.build, "--device", options.device, "--mount", mount.folder,
               "--daemon", str(mount.process.pid), "--source", options.source,
               "--scratch", options.scratch]
    for name, value in more.items():
        command += [f"--{name}", value]
    variables = dict(os.environ)
    if part == "torch_expandable":
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            variables[name] = "expandable_segments:True"
    with open(f"{options.logs}/share_{part}", "ab") as log:
        # A session of its own, so that what it starts can be ended with it.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                   env=variables, text=True, start_new_session=True)
    started.append(process)
    return process


started = []


def end_parts():
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def follow(options, part, limit, mount, results_queue):
    """Starts a part and passes on what it tells."""
    begin = time.monotonic()
    try:
        process = start(options, part, mount)
    except OSError as error:
        results_queue.put((part, {"kind": "not ok", "name": "starts", "detail": str(error)}))
        return

    def kill():
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, kill)
    timer.daemon = True
    timer.start()
    for line in process.stdout:
        try:
            told = json.loads(line)
            assert isinstance(told, dict)
        except (ValueError, AssertionError):
            continue
        results_queue.put((part, told))
    status = process.wait()
    late = not timer.is_alive()
    timer.cancel()
    seconds = time.monotonic() - begin
    if status != 0:
        why = f"ended after the limit of {limit} s" if late else f"ended with status {status}"
        try:
            with open(f"{options.logs}/share_{part}", errors="replace") as file:
                last = [line.strip() for line in file if line.strip()][-1:]
        except OSError:
            last = []
        results_queue.put((part, {"kind": "not ok", "name": "runs to its end", "seconds": seconds,
                                  "detail": " ".join([why, *last])[:300]}))


def run_round(options, parts, mount, results):
    told = queue.Queue()
    threads = [
        threading.Thread(target=follow, args=(options, part, limit, mount, told), daemon=True)
        for part, limit in parts.items()
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or not told.empty():
        try:
            part, line = told.get(timeout=0.2)
        except queue.Empty:
            continue
        results.add(part, line["kind"], line["name"], line.get("seconds", 0), line.get("detail", ""))


def ending(options, part, results):
    """The daemon is ended, or unmounted, while a program has a file mapped."""
    begin = time.monotonic()
    mount = Mount(options, f"{options.scratch}/{part}", f"{options.logs}/share_daemon")
    client = None
    try:
        with open(f"{mount.folder}/file", "wb") as file:
            file.write(b"still here" * 1000)
        client = start(options, "hold_mapped", mount, file=f"{mount.folder}/file")
        line = client.stdout.readline()
        if line != "ready\n":
            raise RuntimeError(f"the client said {line!r}")

        def use(text):
            client.stdin.write(text + "\n")
            client.stdin.flush()
            return client.stdout.readline().strip()

        before = use("before")
        if part == "daemon_ends":
            mount.process.send_signal(signal.SIGTERM)
        else:
            done = mount.unmount()
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip())
        ended = time.monotonic()
        status = mount.process.wait(15)
        took = time.monotonic() - ended
        after = use("after")
        client.stdin.close()
        left = client.wait(15)
        good = (before, status, left) == ("usable; synced", 0, 0) and after.startswith("usable")
        good = good and not os.path.ismount(mount.folder)
        results.add(part, "ok" if good else "not ok", "the client's memory is still usable",
                    time.monotonic() - begin,
                    f"before: {before}; the daemon ended with {status} after {took:.2f} s; after: "
                    f"{after}; the client ended with {left}")
    except Exception as error:
        results.add(part, "not ok", "the client's memory is still usable", time.monotonic() - begin,
                    f"{type(error).__name__}: {error}")
    finally:
        if client and client.poll() is None:
            client.kill()
            client.wait()
        mount.end()


def chosen(options, parts, results):
    """Those that were asked for, and whose framework is there."""
    import importlib.util

    wanted = {}
    for part, limit in parts.items():
        if options.only and part not in options.only:
            continue
        module = MODULES.get(part)
        if module and importlib.util.find_spec(module) is None:
            results.add(part, "skip", f"no {module} here")
            continue
        wanted[part] = limit
    return wanted


def run_all(options, results):
    mount = Mount(options, f"{options.scratch}/mnt", f"{options.logs}/share_daemon")
    try:
        for parts in ROUNDS:
            parts = chosen(options, parts, results)
            for part in [part for part in parts if part in ("daemon_ends", "unmounted")]:
                del parts[part]
                ending(options, part, results)
            run_round(options, parts, mount, results)
        with open(f"{mount.folder}/.resident/log") as file, \
                open(f"{options.logs}/share_log", "w") as copy:
            lines = file.read().splitlines()
            copy.write("\n".join(lines))
        errors = [line for line in lines if " error: " in line]
        results.add("daemon", "not ok" if errors else "ok", "no error in its log", 0, errors[:3] or "")
        with open(f"{mount.folder}/.resident/status") as file:
            left = [line for line in file if line.startswith("shared")]
        results.add("daemon", "note", "at the end", 0, "".join(left))
    finally:
        end_parts()
        good = mount.end()
    results.add("daemon", "ok" if good else "not ok", "unmounts and ends well")


def main():
    options = arguments()
    environment(options)
    if options.part:
        sys.path[:0] = [f"{root}/core/share/python", here]
        run_part(options)
        return
    options.logs = options.logs or tempfile.mkdtemp(prefix="residentfs-share-logs.")
    os.makedirs(options.logs, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = time.monotonic()
    results = Results()
    with tempfile.TemporaryDirectory(prefix="residentfs-share.", ignore_cleanup_errors=True) as scratch:
        options.scratch = scratch
        options.source = f"{scratch}/source"
        with open(options.source, "wb") as file:
            file.write(os.urandom(8 << 20))
        try:
            run_all(options, results)
        except Exception as error:
            results.add("share", "not ok", "all parts", 0, f"{type(error).__name__}: {error}")
    print(f"\n{'part':18} {'ok':>4} {'failed':>7} {'notes':>6} {'seconds':>8}")
    for part, counts in results.counts.items():
        print(f"{part:18} {counts['ok']:4} {counts['not ok']:7} {counts['note']:6} {counts['seconds']:8.2f}")
    for failure in results.failures:
        print(f"FAILED: {failure}")
    passed = sum(counts["ok"] for counts in results.counts.values())
    print(f"all of it: {time.monotonic() - begin:.0f} s; logs: {options.logs}")
    print(f"{passed} passed, {len(results.failures)} failed")
    sys.exit(1 if results.failures else 0)


if __name__ == "__main__":
    main()
