"""What the parts of share.py have in common: steps that are told of and timed, and the driver."""

import ctypes
import json
import os
import subprocess
import sys
import time
import traceback
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

MIB = 1 << 20


def say(kind, name, seconds=0.0, detail=""):
    print(json.dumps({"kind": kind, "name": name, "seconds": seconds, "detail": detail}), flush=True)


def step(name, observe=False):
    """Runs the function at once: it holds, or the traceback is in the part's log, and on it goes.

    OBSERVE: what it returns is a finding, and that it fails is one too.
    """

    def run(function):
        start = time.monotonic()
        try:
            detail = function()
            kind = "note" if observe else "ok"
        except BaseException as error:
            print(f"-- {name}", file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
            kind = "note" if observe else "not ok"
            detail = f"{type(error).__name__}: {error}"[:300]
        say(kind, name, time.monotonic() - start, "" if detail is None else str(detail))
        return function

    return run


def equal(seen, expected):
    if seen != expected:
        raise AssertionError(f"saw {str(seen)[:120]}, expected {str(expected)[:120]}")


def until(condition, seconds):
    """How long it took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.005)
    return time.monotonic() - start


def gives_eio(path):
    try:
        with open(path, "rb", buffering=0) as file:
            file.read(16)
    except OSError as error:
        return error.errno == 5
    return False


def dd(source, target, *options):
    subprocess.run(["dd", f"if={source}", f"of={target}", "status=none", *options], check=True)


def patch(path, offset, content):
    """By dd, as a person would."""
    subprocess.run(
        ["dd", f"of={path}", "bs=1", f"seek={offset}", "conv=notrunc", "status=none"],
        input=content, check=True,
    )


def dump(path, offset, count):
    """By od, as a person would."""
    text = subprocess.run(
        ["od", "-A", "n", "-v", "-t", "x1", "-j", str(offset), "-N", str(count), path],
        check=True, capture_output=True, text=True,
    ).stdout
    return bytes.fromhex("".join(text.split()))


def telemetry(mount):
    """All figures by their last name."""
    found = {}

    def collect(node):
        for key, value in node.items():
            if isinstance(value, dict):
                collect(value)
            else:
                found[key] = value

    with open(os.path.join(mount, ".resident/telemetry.json")) as file:
        collect(json.load(file))
    return found


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp"""

    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = [("location", Location), ("flags", c_int)]


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


PINNED, POSIX_FD, ON_DEVICE = 1, 1, 1
PROT_READ, PROT_READWRITE = 1, 3
MEMORY_TYPE, DEVICE_ORDINAL, RANGE_START, RANGE_SIZE = 2, 9, 11, 12


class Driver:
    """The CUDA driver by itself, in the primary context of the device of the mount."""

    def __init__(self, device=0):
        self.library = ctypes.CDLL(os.environ["SHARE_DRIVER"])
        self.device = device
        context, self.stream = c_void_p(), c_void_p()
        self("cuInit", c_uint(0))
        self("cuDevicePrimaryCtxRetain", byref(context), c_int(device))
        self("cuCtxSetCurrent", context)
        self("cuStreamCreate", byref(self.stream), c_uint(1))

    def try_(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def __call__(self, name, *arguments):
        result = self.try_(name, *arguments)
        if result != 0:
            raise AssertionError(f"{name}: {self.error(result)}")

    def error(self, result):
        text = ctypes.c_char_p()
        self.library.cuGetErrorName(c_int(result), byref(text))
        return f"{(text.value or b'?').decode()} ({result})"

    def alloc(self, nbytes):
        address = c_uint64()
        self("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
        return address.value

    def get(self, address, nbytes):
        content = ctypes.create_string_buffer(nbytes)
        self("cuMemcpyDtoHAsync_v2", content, c_uint64(address), c_size_t(nbytes), self.stream)
        self("cuStreamSynchronize", self.stream)
        return content.raw

    def put(self, address, content):
        self("cuMemcpyHtoDAsync_v2", c_uint64(address), content, c_size_t(len(content)), self.stream)
        self("cuStreamSynchronize", self.stream)

    def fill(self, address, value, nbytes):
        """By a kernel of the driver's; what the driver says."""
        result = self.try_(
            "cuMemsetD8Async", c_uint64(address), ctypes.c_ubyte(value), c_size_t(nbytes), self.stream
        )
        return result or self.try_("cuStreamSynchronize", self.stream)

    def free_bytes(self):
        free, total = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def create(self, nbytes, handle_types=POSIX_FD):
        handle = c_uint64()
        properties = AllocationProp(PINNED, handle_types, Location(ON_DEVICE, self.device))
        self("cuMemCreate", byref(handle), c_size_t(nbytes), byref(properties), c_uint64(0))
        return handle.value

    def reserve(self, nbytes):
        address = c_uint64()
        self("cuMemAddressReserve", byref(address), c_size_t(nbytes), c_size_t(0), c_uint64(0), c_uint64(0))
        return address.value

    def map(self, address, nbytes, handle):
        self("cuMemMap", c_uint64(address), c_size_t(nbytes), c_size_t(0), c_uint64(handle), c_uint64(0))

    def access(self, address, nbytes, flags):
        access = AccessDesc(Location(ON_DEVICE, self.device), flags)
        return self.try_("cuMemSetAccess", c_uint64(address), c_size_t(nbytes), byref(access), c_size_t(1))

    def describe(self, pointer):
        """What the driver says of a pointer, for people."""
        start, size = c_uint64(), c_size_t()
        result = self.try_("cuMemGetAddressRange_v2", byref(start), byref(size), c_uint64(pointer))
        parts = [
            f"AddressRange start+{pointer - start.value} of {size.value}"
            if result == 0
            else f"AddressRange {self.error(result)}"
        ]
        for name, attribute in (("RANGE_START", RANGE_START), ("RANGE_SIZE", RANGE_SIZE)):
            value = c_uint64()
            result = self.try_("cuPointerGetAttribute", byref(value), c_int(attribute), c_uint64(pointer))
            shown = pointer - value.value if attribute == RANGE_START else value.value
            parts.append(f"{name} {f'-{shown}' if attribute == RANGE_START else shown}"
                         if result == 0 else f"{name} {self.error(result)}")
        return ", ".join(parts)
