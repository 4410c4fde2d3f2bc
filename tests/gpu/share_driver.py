"""Parts of share.py that need no framework: the driver by itself."""

import ctypes
import os
import subprocess
import sys
import time
from ctypes import byref, c_uint, c_uint64

from share_steps import MIB, PROT_READ, PROT_READWRITE, Driver, IpcHandle, dump, equal
from share_steps import gives_eio, patch, step, until

import resident


def vmm(mount, options):
    """Attaching memory of cuMemCreate, and what the driver says of pointers."""
    driver = Driver(options.ordinal)
    unit = 4 * MIB
    content = bytes(range(256)) * (unit // 256)

    @step("VMM: one allocation, attached as a whole and in part")
    def _():
        base = driver.reserve(unit)
        driver.map(base, unit, driver.create(unit))
        equal(driver.access(base, unit, PROT_READWRITE), 0)
        driver.put(base, content)
        with resident.attach(f"{mount}/vmm", (base, unit)), \
                resident.attach(f"{mount}/vmm_part", (base + 4096 + 8, 1000)):
            equal(dump(f"{mount}/vmm", 1000, 32), content[1000:1032])
            equal(dump(f"{mount}/vmm_part", 0, 16), content[8:24])
            patch(f"{mount}/vmm_part", 2, b"PATCHED")
            equal(driver.get(base + 4096 + 8, 12), content[8:10] + b"PATCHED" + content[17:20])
            driver.put(base, b"KERNEL")
            equal(dump(f"{mount}/vmm", 0, 6), b"KERNEL")
        return driver.describe(base + 4096)

    base = driver.reserve(8 * unit)

    @step("VMM: one allocation in a reservation of 8 times its size", observe=True)
    def _():
        driver.map(base, unit, driver.create(unit))
        equal(driver.access(base, unit, PROT_READWRITE), 0)
        driver.put(base, content)
        said = driver.describe(base + 4096)
        with resident.attach(f"{mount}/vmm_first", (base, unit)):
            same = dump(f"{mount}/vmm_first", 0, 16) == content[:16]
        return f"{said}; attached, {'same' if same else 'WRONG'} bytes"

    @step("VMM: a second allocation in the same reservation", observe=True)
    def _():
        driver.map(base + unit, unit, driver.create(unit))
        equal(driver.access(base + unit, unit, PROT_READWRITE), 0)
        driver.put(base + unit, content)
        return f"first: {driver.describe(base + 4096)}; second: {driver.describe(base + unit + 4096)}"

    for name, pointer, nbytes in (
        ("the first", base, unit), ("the second", base + unit, unit),
        ("part of the second", base + unit + 512, 1000), ("over both", base + unit - 512, 1024),
    ):

        @step(f"VMM: two allocations in one reservation: attaching {name}", observe=True)
        def _(pointer=pointer, nbytes=nbytes):
            with resident.attach(f"{mount}/vmm_two", (pointer, nbytes)):
                same = dump(f"{mount}/vmm_two", 0, 16) == driver.get(pointer, 16)
            return "works, same bytes" if same else "attached, but WRONG BYTES"

    @step("VMM: the same allocation mapped twice, side by side", observe=True)
    def _():
        handle = driver.create(unit)
        for i in (2, 3):
            driver.map(base + i * unit, unit, handle)
            equal(driver.access(base + i * unit, unit, PROT_READWRITE), 0)
        driver.put(base + 2 * unit, content)
        said = driver.describe(base + 3 * unit)
        with resident.attach(f"{mount}/vmm_twice", (base + 3 * unit, unit)):
            same = dump(f"{mount}/vmm_twice", 0, 16) == content[:16]
        return f"{said}; attached, {'same' if same else 'WRONG'} bytes"

    @step("VMM: not exportable: refused with a reason")
    def _():
        other = driver.reserve(unit)
        driver.map(other, unit, driver.create(unit, 0))
        equal(driver.access(other, unit, PROT_READWRITE), 0)
        try:
            resident.attach(f"{mount}/vmm_private", (other, unit))
        except resident.Error as error:
            return str(error)
        raise AssertionError("it was attached")

    @step("IPC: what the driver says of an imported pointer", observe=True)
    def _():
        owner = subprocess.Popen([sys.executable, *options.self, "--part", "ipc_owner"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            handle = IpcHandle.from_buffer_copy(bytes.fromhex(owner.stdout.readline().strip()))
            address = c_uint64()
            driver("cuIpcOpenMemHandle_v2", byref(address), handle, c_uint(1))
            said = driver.describe(address.value + 4096)
            try:
                with resident.attach(f"{mount}/imported", (address.value, 4096)):
                    said += f"; attached: {dump(f'{mount}/imported', 0, 4)!r}"
            except resident.Error as error:
                said += f"; attaching it: {error}"
            driver("cuIpcCloseMemHandle", address)
        finally:
            owner.communicate("\n", timeout=20)
        return said


def ipc_owner(mount, options):
    driver = Driver(options.ordinal)
    address = driver.alloc(3 * MIB)
    driver.put(address, b"IPC!" * 1024)
    handle = IpcHandle()
    driver("cuIpcGetMemHandle", byref(handle), c_uint64(address))
    print(bytes(handle).hex(), flush=True)
    sys.stdin.readline()


def figures(mount, options):
    """How long mapping takes, and what it leaves behind."""
    driver = Driver(options.ordinal)
    large = (16 << 30) if options.real else 64 * MIB
    name = f"{mount}/large"

    def descriptors(process="self"):
        return len(os.listdir(f"/proc/{process}/fd"))

    def timed(call):
        start = time.monotonic()
        result = call()
        return result, time.monotonic() - start

    def milliseconds(seconds):
        return f"{seconds * 1000:.1f} ms"

    state = {}

    @step("a large file, allocated and not written")
    def _():
        descriptor = state["descriptor"] = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        _, seconds = timed(lambda: os.posix_fallocate(descriptor, 0, large))
        return f"{large >> 20} MiB: fallocate {milliseconds(seconds)}"

    @step("… is mapped without a copy")
    def _():
        before = driver.free_bytes()
        mapping, seconds = timed(lambda: resident.map(name))
        state["mapping"] = mapping
        taken = before - driver.free_bytes()
        equal(mapping.nbytes, large)
        driver.fill(mapping.address, 0x5A, large)
        driver.put(mapping.address + large - 4, b"last")
        equal(os.pread(state["descriptor"], 8, large - 8), b"ZZZZlast")
        if options.real and taken > 256 * MIB:
            raise AssertionError(f"{taken >> 20} MiB more of the device are in use")
        return f"map {milliseconds(seconds)}, {taken >> 20} MiB more device memory in use"

    @step("… remapped after growth, at the same address if there is room")
    def _():
        mapping = state["mapping"]
        first = mapping.address
        os.posix_fallocate(state["descriptor"], large, large // 16)
        _, seconds = timed(mapping.remap)
        equal(mapping.nbytes, large + large // 16)
        equal(driver.get(mapping.address + large - 8, 8), b"ZZZZlast")
        kept = mapping.address == first
        return f"remap {milliseconds(seconds)}, {'same' if kept else 'another'} address"

    @step("… a second mapping, and both unmapped")
    def _():
        second, seconds = timed(lambda: resident.map(name))
        equal(driver.get(second.address + large - 8, 8), b"ZZZZlast")
        _, closing = timed(second.close)
        _, closing_first = timed(state["mapping"].close)
        os.close(state["descriptor"])
        os.unlink(name)
        return (f"map {milliseconds(seconds)}, unmap {milliseconds(closing)}, "
                f"{milliseconds(closing_first)}")

    @step("1000 maps and unmaps of a small file leave nothing")
    def _():
        small = f"{mount}/small"
        with open(small, "wb") as file:
            file.write(b"small" * 1000)
        for _ in range(10):
            resident.map(small).close()
        free, mine, daemons = driver.free_bytes(), descriptors(), descriptors(options.daemon)

        def repeat():
            for _ in range(1000):
                resident.map(small).close()

        _, seconds = timed(repeat)
        equal(descriptors(), mine)
        until(lambda: descriptors(options.daemon) <= daemons, 2)
        lost = free - driver.free_bytes()
        if lost > 32 * MIB:
            raise AssertionError(f"{lost >> 20} MiB of device memory are gone")
        return f"{seconds * 1000:.0f} µs each, device memory {lost >> 10} KiB less, no descriptor more"


def lifetime(mount, options):
    """Programs that are killed: one that has attached, one that has mapped."""

    def client(part, *arguments):
        process = subprocess.Popen([sys.executable, *options.self, "--part", part, *arguments],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        if line != "ready\n":
            process.kill()
            raise AssertionError(f"{part} did not start: {line!r}")
        return process

    def log():
        with open(f"{mount}/.resident/log") as file:
            return file.read()

    @step("the owner of attached memory is killed: EIO, a line in the log")
    def _():
        path = f"{mount}/owned"
        owner = client("hold_attached", "--file", path)
        equal(dump(path, 0, 4), b"mine")
        owner.kill()
        seconds = until(lambda: gives_eio(path), 1)
        owner.wait()
        lines = [line for line in log().splitlines() if "/owned" in line and "EIO" in line]
        if not lines or f"process {owner.pid}" not in lines[-1]:
            raise AssertionError(f"the log has {lines}")
        os.unlink(path)
        return f"after {seconds * 1000:.0f} ms; {lines[-1]}"

    @step("a program that has mapped is killed: counted down")
    def _():
        path = f"{mount}/mapped"
        with open(path, "wb") as file:
            file.write(b"mapped" * 1000)
        holder = client("hold_mapped", "--file", path)

        def users():
            with open(f"{mount}/.resident/buffers") as file:
                return f"{holder.pid}:" in file.read()

        equal(users(), True)
        holder.kill()
        seconds = until(lambda: not users(), 1)
        holder.wait()
        equal(dump(path, 0, 6), b"mapped")
        return f"after {seconds * 1000:.0f} ms"


def hold_attached(mount, options):
    driver = Driver(options.ordinal)
    address = driver.alloc(MIB)
    driver.put(address, b"mine" * 1024)
    resident.attach(options.file, (address, 4096))
    print("ready", flush=True)
    sys.stdin.readline()


def hold_mapped(mount, options):
    """Uses the memory once more for each line on stdin."""
    driver = Driver(options.ordinal)
    mapping = resident.map(options.file)
    print("ready", flush=True)
    for line in sys.stdin:
        driver.put(mapping.address, line.encode())
        driver.fill(mapping.address + 1024, 0x41, 1024)
        good = driver.get(mapping.address, len(line)) == line.encode()
        good = good and driver.get(mapping.address + 1024, 1024) == b"A" * 1024
        try:
            mapping.sync()
            said = "synced"
        except resident.Error as error:
            said = f"sync: {error}"
        print("usable" if good else "WRONG BYTES", said, sep="; ", flush=True)
    mapping.close()


def protection(mount, options):
    """Last of all: what a write to memory that may only be read does to its process."""
    driver = Driver(options.ordinal)
    unit = 2 * MIB

    @step("PROT_READ: cuMemSetAccess on memory of this process", observe=True)
    def _():
        address = driver.reserve(unit)
        driver.map(address, unit, driver.create(unit))
        result = driver.access(address, unit, PROT_READ)
        driver.access(address, unit, PROT_READWRITE)
        return driver.error(result)

    with open(f"{mount}/protected", "wb") as file:
        file.write(b"protected" * 1000)
    mapping = resident.map(f"{mount}/protected", read_only=True)

    @step("a read-only mapping is read")
    def _():
        equal(driver.get(mapping.address, 9), b"protected")
        return f"the driver {'refuses' if mapping.protected else 'does not refuse'} writes of kernels"

    @step("a kernel writes to it", observe=True)
    def _():
        result = driver.fill(mapping.address, 0x21, 64)
        with open(f"{mount}/protected", "rb", buffering=0) as file:
            content = file.read(9)
        return f"the driver says {driver.error(result)}, the file has {content!r}"


    @step("a kernel of this program's writes to it", observe=True)
    def _():
        if not options.real:
            return "no kernels on the emulated device"
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        driver("cuModuleLoadData", byref(module), POKE)
        driver("cuModuleGetFunction", byref(kernel), module, b"poke")
        pointer = c_uint64(mapping.address)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
        one = [c_uint(1)] * 6
        driver("cuLaunchKernel", kernel, *one, c_uint(0), driver.stream, arguments, None)
        result = driver.try_("cuStreamSynchronize", driver.stream)
        with open(f"{mount}/protected", "rb", buffering=0) as file:
            content = file.read(9)
        return f"the driver says {driver.error(result)}, the file has {content!r}"

    @step("… and the daemon goes on")
    def _():
        equal(dump(f"{mount}/.resident/version", 0, 4) != b"", True)
        with open(f"{mount}/after_fault", "wb") as file:
            file.write(b"after")
        equal(dump(f"{mount}/after_fault", 0, 5), b"after")
        with open(f"{mount}/.resident/status") as file:
            health = [line for line in file if line.startswith("health")]
        return " ".join("".join(health).split())


# Stores 7 where its argument says.
POKE = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry poke(.param .u64 pointer)
{
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    ld.param.u64 %rd1, [pointer];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""

PARTS = {
    function.__name__: function
    for function in (vmm, ipc_owner, figures, lifetime, hold_attached, hold_mapped, protection)
}
