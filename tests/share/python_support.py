"""Cases, a CUDA program of the emulated driver, and a consumer of DLPack, for python_*.py."""

import ctypes
import json
import os
import sys
import time
import traceback
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p

mount = sys.argv[1] if len(sys.argv) > 1 else "."
_cases = []


def case(name):
    def add(function):
        _cases.append((name, function))
        return function

    return add


def run():
    for name, function in _cases:
        try:
            function()
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            print(f"not ok - {name}")
        else:
            print(f"ok - {name}")
        sys.stdout.flush()
    print("end of cases", flush=True)


def equal(seen, expected):
    assert seen == expected, f"saw {seen!r}, expected {expected!r}"


def raises(kind, call, *words, errno=None):
    """CALL raises KIND, whose text has WORDS in it."""
    try:
        got = call()
    except kind as error:
        assert type(error) is kind or not isinstance(kind, type), f"{error!r} is not just {kind}"
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{str(error)!r} says nothing of {missing}"
        assert errno is None or error.errno == errno, f"{error!r}: errno is not {errno}"
    else:
        raise AssertionError(f"no {kind.__name__}, but {got!r}")


def direct(name, flags):
    """An opener for files that stay open while they are mapped: with cache=on they must not be cached."""
    return os.open(name, flags | os.O_DIRECT)


def path(name):
    return os.path.join(mount, name)


def write(name, content):
    with open(path(name), "wb") as file:
        file.write(content)
    return path(name)


def read(name, count=-1):
    with open(path(name), "rb") as file:
        return file.read(count)


def shared():
    """(mappings, attachments) that the daemon counts."""
    with open(path(".resident/telemetry.json")) as file:
        text = json.load(file)
    found = {}

    def collect(node):
        for key, value in node.items():
            if isinstance(value, dict):
                collect(value)
            else:
                found[key] = value

    collect(text)
    return found["mappings"], found["attachments"]


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)


class Device:
    """What a CUDA program would do, on the emulated driver."""

    def __init__(self):
        cuda = self.cuda = ctypes.CDLL(os.environ["RESIDENTFS_EMULATED_LIBRARY"])
        cuda.cuMemcpyDtoHAsync_v2.argtypes = [c_void_p, c_uint64, c_size_t, c_void_p]
        cuda.cuMemcpyHtoDAsync_v2.argtypes = [c_uint64, c_void_p, c_size_t, c_void_p]
        cuda.cuMemAlloc_v2.argtypes = [POINTER(c_uint64), c_size_t]
        cuda.cuMemFree_v2.argtypes = [c_uint64]
        context, self.stream = c_void_p(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        assert result == 0, f"{name} gives {result}"

    def alloc(self, nbytes):
        address = c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), nbytes)
        return address.value

    def free(self, address):
        self.call("cuMemFree_v2", address)

    def get(self, address, nbytes):
        content = ctypes.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoHAsync_v2", content, address, nbytes, self.stream)
        self.call("cuStreamSynchronize", self.stream)
        return content.raw

    def put(self, address, content):
        self.call("cuMemcpyHtoDAsync_v2", address, content, len(content), self.stream)
        self.call("cuStreamSynchronize", self.stream)


class Array:
    """Memory of the device with __cuda_array_interface__, as other libraries have it."""

    def __init__(self, device, shape, typestr, pointer=None, strides=None, itemsize=None):
        self.device = device
        nbytes = itemsize or int(typestr[2:])
        for extent in shape:
            nbytes *= extent
        self.nbytes = nbytes
        self.owned = device.alloc(nbytes) if pointer is None else None
        self.pointer = self.owned or pointer
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "data": (self.pointer, False),
            "strides": strides,
        }

    def __del__(self):
        if self.owned:
            self.device.free(self.owned)


# ---- a consumer of DLPack: the structures as dlpack.h has them ----


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_uint64),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", c_void_p), ("deleter", c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DLTensor),
    ]


_api = ctypes.pythonapi
_api.PyCapsule_GetName.restype = c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_GetPointer.restype = c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, c_char_p]
_api.PyCapsule_SetName.restype = c_int
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, c_char_p]
_USED = {
    b"dltensor": ctypes.create_string_buffer(b"used_dltensor"),
    b"dltensor_versioned": ctypes.create_string_buffer(b"used_dltensor_versioned"),
}


def capsule_name(capsule):
    return _api.PyCapsule_GetName(capsule)


class Consumed:
    """A tensor taken out of a capsule, as a library does. Whoever has it calls delete()."""

    def __init__(self, capsule):
        name = capsule_name(capsule)
        self.versioned = name == b"dltensor_versioned"
        kind = DLManagedTensorVersioned if self.versioned else DLManagedTensor
        self.pointer = _api.PyCapsule_GetPointer(capsule, name)
        self.managed = kind.from_address(self.pointer)
        self.tensor = self.managed.tensor
        _api.PyCapsule_SetName(capsule, ctypes.cast(_USED[name], c_char_p))

    @property
    def shape(self):
        return tuple(self.tensor.shape[: self.tensor.ndim])

    @property
    def strides(self):
        return tuple(self.tensor.strides[: self.tensor.ndim])

    def delete(self):
        deleter = ctypes.CFUNCTYPE(None, c_void_p)(self.managed.deleter)
        deleter(self.pointer)
