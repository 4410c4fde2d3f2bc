"""Attaching memory of this process, and safetensors files."""

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import weakref

import resident
from python_support import Array, Consumed, Device, case, equal, path, raises, read, run, shared
from python_support import direct, until, write

device = Device()


@case("an array is a file: read, written, of the right size")
def _():
    array = Array(device, (10, 50), "<f8")
    device.put(array.pointer, b"tensor" * 600)
    with resident.attach(path("t"), array, mode=0o600) as attachment:
        status = os.stat(path("t"))
        equal((status.st_size, status.st_mode & 0o777), (4000, 0o600))
        equal((attachment.path, attachment.nbytes, attachment.closed), (path("t"), 4000, False))
        equal(read("t", 12), b"tensortensor")
        with open(path("t"), "r+b", buffering=0) as file:
            file.seek(6)
            file.write(b"PATCHED")
        equal(device.get(array.pointer, 18), b"tensorPATCHEDensor")
        device.put(array.pointer + 3990, b"kernel")
        equal(read("t")[-10:], b"kernel" + device.get(array.pointer + 3996, 4))
        raises(PermissionError, lambda: os.truncate(path("t"), 5))
        equal(shared(), (0, 1))
    equal((attachment.closed, os.path.exists(path("t")), shared()), (True, False, (0, 0)))


@case("two arrays of one allocation, and (pointer, nbytes)")
def _():
    block = Array(device, (8 << 20,), "|u1")
    device.put(block.pointer, b"0123456789" * 100)
    first = Array(device, (10,), "|u1", pointer=block.pointer + 3)
    with resident.attach(path("a"), first), resident.attach(path("b"), (block.pointer + 5, 20)):
        equal((read("a"), read("b")), (b"3456789012", b"56789012345678901234"))
        equal(shared(), (0, 2))
        with open(path("a"), "r+b", buffering=0) as file:
            file.write(b"xyz")
        equal(read("b", 4), b"z678")
    equal(shared(), (0, 0))


@case("detach: EIO, the object is let go, the file can be removed")
def _():
    array = Array(device, (100,), "<i4")
    alive = weakref.ref(array)
    attachment = resident.attach(path("t"), array)
    del array
    gc.collect()
    assert alive() is not None, "the array is gone while it is attached"
    equal(len(read("t")), 400)
    attachment.detach()
    attachment.detach()
    assert alive() is None, "the array is kept"
    raises(OSError, lambda: read("t"), errno=errno.EIO)
    attachment.detach(unlink=True)
    attachment.detach(unlink=True)
    equal(os.path.exists(path("t")), False)


@case("unlink spares another file of that name")
def _():
    array = Array(device, (100,), "<i4")
    attachment = resident.attach(path("t"), array)
    os.unlink(path("t"))
    write("t", b"other")
    attachment.detach(unlink=True)
    equal(read("t"), b"other")
    os.unlink(path("t"))


@case("what nobody keeps stays attached")
def _():
    resident.attach(path("t"), Array(device, (16,), "|u1"))
    gc.collect()
    equal((len(read("t")), shared()), (16, (0, 1)))
    from resident import _attachment
    (attachment,) = (entry[0] for entry in _attachment._attached.values())
    attachment.detach(unlink=True)


@case("what cannot be attached is refused, and leaves no file")
def _():
    array = Array(device, (10, 10), "<f4")

    def attach(obj):
        return lambda: resident.attach(path("t"), obj)

    turned = Array(device, (10, 10), "<f4", pointer=array.pointer, strides=(4, 40))
    raises(ValueError, attach(turned), "contiguous")
    raises(TypeError, attach(b"bytes"), "bytes", "__cuda_array_interface__")
    raises(resident.Error, attach((0x1234000, 100)), "0x1234000", errno=errno.EINVAL)
    raises(resident.Error, attach((array.pointer, 1 << 30)), "one allocation", errno=errno.EINVAL)
    raises(resident.Error, attach((array.pointer, 0)), errno=errno.EINVAL)
    equal(os.path.exists(path("t")), False)
    write("t", b"there")
    raises(resident.Error, attach(array), "t", errno=errno.EEXIST)
    equal(read("t"), b"there")
    os.unlink(path("t"))
    raises(resident.Error, lambda: resident.attach("/tmp/t", array), "residentfs", errno=errno.ENOTSUP)
    equal((os.path.exists("/tmp/t"), shared()), (False, (0, 0)))
    # Extents of 1 may have any stride.
    flat = Array(device, (1, 10), "<f4", pointer=array.pointer, strides=(999, 4))
    resident.attach(path("t"), flat).detach(unlink=True)


class Tensor:
    """As torch.Tensor, one that requires a gradient: it refuses the interface."""

    is_cuda = True

    def __init__(self, array, contiguous=True):
        self.array, self.contiguous = array, contiguous

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")

    def data_ptr(self):
        return self.array.pointer

    def numel(self):
        return self.array.nbytes // 2

    def element_size(self):
        return 2

    def is_contiguous(self):
        return self.contiguous


@case("a tensor that has no array interface, as PyTorch's parameters")
def _():
    array = Array(device, (30,), "<i2")
    with resident.attach(path("t"), Tensor(array)):
        equal(os.stat(path("t")).st_size, 60)
    raises(ValueError, lambda: resident.attach(path("t"), Tensor(array, False)), "contiguous")


@case("an owner that is killed: EIO, and the log says so")
def _():
    program = """
import sys, time, resident
from python_support import Array, Device
device = Device()
resident.attach(sys.argv[2], Array(device, (1000,), "|u1"))
print("attached", flush=True)
time.sleep(60)
"""
    folder = os.path.dirname(os.path.abspath(__file__))
    environment = dict(os.environ, PYTHONPATH=os.environ["PYTHONPATH"] + ":" + folder)
    child = subprocess.Popen([sys.executable, "-c", program, path("."), path("t")],
                             stdout=subprocess.PIPE, env=environment, text=True)
    try:
        equal(child.stdout.readline(), "attached\n")
        equal((len(read("t")), shared()), (1000, (0, 1)))
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    until(lambda: shared() == (0, 0))
    raises(OSError, lambda: read("t"), errno=errno.EIO)
    log = read(".resident/log").decode()
    assert "/t gives EIO" in log and f"process {child.pid}" in log, log[-500:]
    os.unlink(path("t"))


# ---- safetensors ----


def encode(header, data=b"", size=None, pad=8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % pad)
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@case("a safetensors file is tensors over its own memory")
def _():
    data = bytes(range(256)) * 4
    header = {
        "__metadata__": {"format": "pt"},
        "weight": entry("BF16", [8, 16], 0, 256),
        "bias": entry("F32", [16], 256, 320),
        "scalar": entry("I64", [], 320, 328),
        "none": entry("F16", [0, 3], 328, 328),
        "eights": entry("F8_E4M3", [2, 4], 328, 336),
        "flags": entry("BOOL", [688], 336, 1024),
    }
    content = encode(header, data)
    write("model", content)
    start = len(content) - len(data)
    with resident.safetensors(path("model")) as tensors:
        equal(tensors.metadata, {"format": "pt"})
        equal(list(tensors), ["weight", "bias", "scalar", "none", "eights", "flags"])
        base = tensors.mapping.address
        for name, (dtype, shape, begin) in {
            "weight": ("bfloat16", (8, 16), 0), "bias": ("float32", (16,), 256),
            "scalar": ("int64", (), 320), "none": ("float16", (0, 3), 328),
            "eights": ("float8_e4m3fn", (2, 4), 328), "flags": ("bool", (688,), 336),
        }.items():
            view = tensors[name]
            equal((view.dtype, view.shape, view.address), (dtype, shape, base + start + begin))
        del view
        equal(device.get(tensors["bias"].address, 64), data[256:320])
        taken = Consumed(tensors["weight"].__dlpack__(max_version=(1, 0)))
        equal(shared(), (1, 0))
    equal((len(tensors), tensors.mapping.closed, shared()), (0, True, (1, 0)))
    taken.delete()
    equal(shared(), (0, 0))
    with resident.safetensors(path("model"), names=["bias"], read_only=True) as tensors:
        equal((list(tensors), tensors["bias"].read_only), (["bias"], True))
    with open(path("model"), "rb", opener=direct) as file, resident.safetensors(file) as tensors:
        equal(tensors["bias"].read_only, True)
    raises(KeyError, lambda: resident.safetensors(path("model"), names=["x"]), "x")
    equal(shared(), (0, 0))


@case("misaligned tensors are named, others can still be had")
def _():
    header = {"bytes": entry("U8", [2], 0, 2), "halves": entry("F16", [1], 2, 4),
              "floats": entry("F32", [2], 4, 12), "packed": entry("F4", [8], 12, 16)}
    write("model", encode(header, bytes(16), pad=2))
    shift = len(encode(header, pad=2)) % 4
    names = ["bytes", "halves"] if shift else ["bytes", "halves", "floats"]
    resident.safetensors(path("model"), names=names).close()
    raises(ValueError, lambda: resident.safetensors(path("model"), names=["packed"]), "'packed'", "F4")
    write("model", encode({"a": entry("U8", [1], 0, 1), "b": entry("F32", [1], 1, 5)}, bytes(5)))
    raises(ValueError, lambda: resident.safetensors(path("model")), "'b'", "multiple of 4", "F32")


@case("hostile safetensors files are refused, without a mapping")
def _():
    good = entry("F32", [4], 0, 16)
    for content, words in (
        (b"", ["ends within its header"]),
        (b"\x10\0\0\0\0\0\0", ["ends within its header"]),
        (encode({}, size=(1 << 64) - 1), ["18446744073709551615 bytes"]),
        (encode({}, size=100), ["100 bytes"]),
        (encode(b"{", bytes(16)), ["JSON"]),
        (encode(b"\xff\xfe{}"), ["JSON"]),
        (encode(b"[1]"), ["object"]),
        (encode(b"[" * 100000), ["JSON"]),
        (encode(b'{"a": NaN}'), ["NaN"]),
        (encode(b'{"a": ' + b"9" * 5000 + b"}"), []),
        (encode(b'{"a": 1, "a": 2}'), ["twice"]),
        (encode({"a": 5}), ["'a'"]),
        (encode({"__metadata__": {"x": 1}}), ["__metadata__"]),
        (encode({"a": entry("F32", [4], 0, 17)}, bytes(16)), ["17", "16"]),
        (encode({"a": entry("F32", [4], 16, 0)}, bytes(16)), ["not within"]),
        (encode({"a": entry("F32", [5], 0, 16)}, bytes(16)), ["'a'", "shape"]),
        (encode({"a": entry("F32", [1 << 62] * 1000, 0, 16)}, bytes(16)), ["shape"]),
        (encode({"a": entry("F32", [1 << 63, 0], 0, 0)}), ["'a'"]),
        (encode({"a": entry("F32", [-4], 0, 16)}, bytes(16)), ["'a'"]),
        (encode({"a": entry("F32", [True], 0, 4)}, bytes(4)), ["'a'"]),
        (encode({"a": entry("F32", [4.0], 0, 16)}, bytes(16)), ["'a'"]),
        (encode({"a": entry("F99", [4], 0, 16)}, bytes(16)), ["F99"]),
        (encode({"a": {**good, "data_offsets": [0]}}, bytes(16)), ["data_offsets"]),
        (encode({"a": {**good, "data_offsets": ["0", 16]}}, bytes(16)), ["data_offsets"]),
        (encode({"a": good, "b": entry("F32", [4], 8, 24)}, bytes(24)), ["'b'", "not at 16"]),
        (encode({"a": good, "b": entry("F32", [4], 20, 36)}, bytes(36)), ["'b'", "not at 16"]),
        (encode({"a": good}, bytes(20)), ["16", "20"]),
    ):
        write("bad", content)
        raises(ValueError, lambda: resident.safetensors(path("bad")), *words)
    equal(shared(), (0, 0))


run()
