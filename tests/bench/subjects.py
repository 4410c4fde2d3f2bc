"""What is measured: mounts of residentfs and of what it is compared with, and the bus."""

import json
import os
import shutil
import subprocess
import tempfile
import time

from rows import MANY_FILES, MIB

MOUNT_SECONDS = 60
LOAD_SECONDS = 300


class Failure(Exception):
    """A load, or a mount, that did not work; the message is for people."""


class Unable(Exception):
    """A row that this subject cannot have here: no room."""


def run_load(command):
    """The figures that a load prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired as late:
        raise Failure(f"not done after {LOAD_SECONDS} s: {' '.join(command)}") from late
    if done.returncode:
        raise Failure(f"{done.stderr.strip()} (status {done.returncode}): {' '.join(command)}")
    return json.loads(done.stdout)


class Subject:
    """Something that a step can be measured on."""

    name = ""

    def start(self):
        """Called before each step; Failure when it cannot be used."""

    def takes(self, step):
        return not any(row.cached for row in step.rows)

    def prepare(self, step):
        """What the rows need, without being measured."""

    def measure(self, row, step):
        """The figures of one round of a row; None when the row is only for the first round."""
        raise NotImplementedError

    def clean(self, step):
        """After the last round of a step, or a failed one."""

    def stop(self):
        """Gives everything back. False, and a line for people: it did not end well."""
        return True


class Bus(Subject):
    name = "bus"

    def __init__(self, program, device, settings):
        self.command, self.device, self.settings = program, device, settings

    def takes(self, step):
        return any(row.bus for row in step.rows)

    def measure(self, row, step):
        parameters = {"ms": self.settings.milliseconds, **row.bus}
        load = parameters.pop("load")
        if load == "copy":
            parameters["file"] = self.settings.file_bytes
        return run_load([self.command, load, self.device, *(f"{key}={value}" for key, value in parameters.items())])


class Folder(Subject):
    """Files in a folder. Other subjects are one that is mounted first."""

    def __init__(self, name, folder, io_load, settings):
        self.name, self.folder, self.io_load, self.settings = name, folder, io_load, settings
        self.present = set()  # of "one", "many"

    def can(self, row):
        """Whether a row of a step makes sense here."""
        return row.load != "memory"

    def load(self, load, parameters):
        return run_load([self.io_load, load, self.folder, *(f"{key}={value}" for key, value in parameters.items())])

    def remove(self, *names):
        for name in names:
            try:
                os.unlink(os.path.join(self.folder, name))
            except FileNotFoundError:
                pass

    def free_bytes(self):
        space = os.statvfs(self.folder)
        return space.f_bavail * space.f_frsize

    def prepare(self, step):
        size = self.settings.file_bytes
        if step.file_bytes:
            self.present.clear()
            self.remove(*map(str, range(MANY_FILES + 1)))
            if self.free_bytes() < step.file_bytes * 1.05:
                raise Unable(f"no room: {self.free_bytes()} bytes free")
        if step.needs in ("one", "copy") and "one" not in self.present:
            self.load("write", {"file": size, "ms": 0, "block": MIB})
            self.present.add("one")
        if step.needs == "many" and "many" not in self.present:
            self.load("write", {"file": size // MANY_FILES, "many": 1, "clients": MANY_FILES, "ms": 0, "block": MIB})
            self.present.add("many")
        if step.needs == "copy":
            self.load("copy", {"file": size, "ms": 0, "block": 2048 * MIB})

    def measure(self, row, step):
        if row.load == "stat":
            self.forget_names()
        size = step.file_bytes or self.settings.file_bytes
        parameters = {"ms": self.settings.milliseconds, "file": size, **row.parameters}
        if "many" in parameters:
            parameters["file"] //= MANY_FILES
        before = self.cpu_seconds()
        result = self.load(row.load, parameters)
        if before is not None:
            result["daemon_cpu_seconds"] = self.cpu_seconds() - before
        return result

    def clean(self, step):
        if step.file_bytes:
            self.remove("0")
        if any(row.load == "copy" for row in step.rows):
            self.remove("1000")
        if any(row.load == "create" for row in step.rows):
            for name in os.listdir(self.folder) if os.path.isdir(self.folder) else ():
                if name.startswith("d"):
                    shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)

    def forget_names(self):
        """So that the next lookups ask the file system."""

    def cpu_seconds(self):
        """Of the daemon; None where there is none, or none that is known."""
        return None

class Peer(Folder):
    """A folder of its own in somebody's mount."""

    def __init__(self, name, parent, io_load, settings):
        super().__init__(name, tempfile.mkdtemp(prefix="residentfs-bench.", dir=parent), io_load, settings)

    def stop(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        return True


class Tmpfs(Folder):
    """A tmpfs with most of the memory that there is; for users, a folder in /dev/shm."""

    mounted = False
    ready = False

    def start(self):
        if self.ready:
            return
        if os.geteuid() == 0:
            os.mkdir(self.folder)
            size = available_memory() * 3 // 4
            command = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes=0", "tmpfs", self.folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Failure(f"no tmpfs: {done.stderr.strip()}")
            self.mounted = True
        else:
            self.folder = tempfile.mkdtemp(prefix="residentfs-bench.", dir="/dev/shm")
        self.ready = True

    def stop(self):
        if self.mounted:
            subprocess.run(["umount", self.folder], check=False)
        elif self.ready:
            shutil.rmtree(self.folder, ignore_errors=True)
        return True


class Daemon(Folder):
    """A FUSE daemon that stays in the foreground. Mounted when it is first needed."""

    def __init__(self, name, folder, io_load, settings, command, options, cached=False):
        super().__init__(name, folder, io_load, settings)
        self.command, self.options, self.cached = command, options, cached
        self.process, self.failed = None, None
        self.fresh_for = None  # the step that it was started anew for
        self.rss_before = None  # then; until memory has been measured
        self.logged = []
        self.messages = folder + ".messages"

    def takes(self, step):
        return self.cached == any(row.cached for row in step.rows)

    def can(self, row):
        # Without bytes, a copy or an inode there is nothing to compare.
        return row.load not in ("memory", "copy") or not self.name.startswith("null")

    def start(self):
        if self.failed:
            raise Failure(self.failed)
        if self.process:
            if self.process.poll() is not None:
                raise Failure(f"{self.name} has ended: {self.last_message()}")
            return
        os.mkdir(self.folder)
        command = [*self.command, self.folder, *(["-o", ",".join(self.options)] if self.options else [])]
        if self.name.startswith("residentfs"):
            command.append("-f")
        with open(self.messages, "wb") as messages:
            # In a session of its own: a signal for the benchmark is not for the daemon.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, start_new_session=True
            )
        end = time.monotonic() + MOUNT_SECONDS
        while not is_mounted(self.folder):
            if self.process.poll() is not None or time.monotonic() > end:
                self.failed = f"{' '.join(command)} did not mount: {self.last_message()}"
                raise Failure(self.failed)
            time.sleep(0.02)
        os.statvfs(self.folder)  # it answers

    def prepare(self, step):
        # What a process has once had, it keeps for itself: memory is that of one without a past.
        if self.can_tell_memory(step) and self.fresh_for is not step:
            if not self.stop():
                raise Failure(f"{self.name} did not end well")
            os.rmdir(self.folder)
            self.process, self.fresh_for = None, step
            self.present.clear()
            self.start()
            self.rss_before = self.rss()
        super().prepare(step)

    def can_tell_memory(self, step):
        return any(row.load == "memory" and self.can(row) for row in step.rows)

    def measure(self, row, step):
        if row.load != "memory":
            return super().measure(row, step)
        before, self.rss_before = self.rss_before, None
        return {"value": (self.rss() - before) / row.parameters["count"]} if before is not None else None

    def last_message(self):
        with open(self.messages, encoding="utf-8", errors="replace") as file:
            return (file.read().strip().splitlines() or ["no message"])[-1]

    def version(self):
        """KEY VALUE lines of .resident/version."""
        with open(os.path.join(self.folder, ".resident", "version"), encoding="utf-8") as file:
            return dict(line.rstrip("\n").split(" ", 1) for line in file if " " in line)

    def errors(self):
        """What residentfs has logged as one: its figures are not worth much then."""
        try:
            with open(os.path.join(self.folder, ".resident", "log"), encoding="utf-8") as file:
                return self.logged + [line.strip() for line in file if " error: " in line]
        except OSError:
            return self.logged  # not mounted, not a residentfs, or dead, which has been told of

    def forget_names(self):
        # A remount drops the names that the kernel knows of the mount.
        subprocess.run(["mount", "-i", "-o", "remount,rw", self.folder], capture_output=True, check=False)

    def cpu_seconds(self):
        threads, total = f"/proc/{self.process.pid}/task", 0
        for thread in os.listdir(threads):
            try:
                with open(f"{threads}/{thread}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])
            except OSError:
                pass  # it has just ended
        return total / 1e9

    def rss(self):
        """Host memory in bytes."""
        with open(f"/proc/{self.process.pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Rss:"))

    def stop(self):
        if not self.process:
            return True
        self.logged = self.errors()
        if is_mounted(self.folder):
            subprocess.run(["umount", self.folder], capture_output=True, check=False)
        if is_mounted(self.folder):
            lazily = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
            subprocess.run([*lazily, self.folder], capture_output=True, check=False)
        try:
            self.process.wait(MOUNT_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"{self.name} did not end after its unmount: killed")
            self.process.kill()
            self.process.wait()
        if self.process.returncode and not self.failed:
            print(f"{self.name} ended with status {self.process.returncode}: {self.last_message()}")
        return self.process.returncode == 0


def is_mounted(folder):
    """Also when its daemon is dead."""
    with open("/proc/self/mounts", encoding="utf-8") as file:
        return any(line.split()[1] == os.path.realpath(folder) for line in file)


def available_memory():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
