"""Mappings and views, by both protocols, as consumers see them."""

import ctypes
import errno
import gc
import os
import subprocess
import sys
import threading
import types

import resident
from python_support import Consumed, Device, DLManagedTensor, capsule_name, case, equal, mount, path, raises, read
from python_support import direct, run, shared, until, write

device = Device()


@case("bytes are seen both ways, by path, file and descriptor")
def _():
    write("f", b"hello" * 1000)
    with resident.map(path("f")) as mapping:
        equal((mapping.nbytes, mapping.device, mapping.read_only, mapping.closed), (5000, 0, False, False))
        equal(device.get(mapping.address, 10), b"hellohello")
        device.put(mapping.address + 5, b"KERNEL")
        equal(read("f", 12), b"helloKERNELe")
        equal(shared(), (1, 0))
    equal(shared(), (0, 0))
    equal(mapping.closed, True)
    with open(path("f"), "r+b", opener=direct) as file:
        file.write(b"J")  # in Python's buffer
        with resident.map(file) as mapping:
            equal(device.get(mapping.address, 2), b"Je")
    descriptor = direct(path("f"), os.O_RDWR)
    with resident.map(descriptor) as mapping:
        os.close(descriptor)
        equal(device.get(mapping.address, 2), b"Je")


@case("the CUDA Array Interface has every field, for each type")
def _():
    write("f", bytes(4096))
    with resident.map(path("f")) as mapping:
        interface = mapping.view("float16", (3, 5), offset=6).__cuda_array_interface__
        equal(interface, {
            "version": 3, "shape": (3, 5), "typestr": "<f2", "data": (mapping.address + 6, False),
            "strides": None, "stream": None,
        })
        strided = mapping.view("int32", (4, 2), strides=(64, 4))
        equal(strided.__cuda_array_interface__["strides"], (64, 4))
        equal(mapping.view("u1").__cuda_array_interface__["shape"], (4096,))
        equal(mapping.view("int64", (0, 7)).__cuda_array_interface__["data"], (0, False))
        for name, typestr in (
            ("bool", "|b1"), ("int8", "|i1"), ("uint8", "|u1"), ("int16", "<i2"), ("uint16", "<u2"),
            ("int32", "<i4"), ("uint32", "<u4"), ("int64", "<i8"), ("uint64", "<u8"),
            ("float16", "<f2"), ("float32", "<f4"), ("float64", "<f8"),
            ("complex64", "<c8"), ("complex128", "<c16"),
        ):
            equal(mapping.view(name).__cuda_array_interface__["typestr"], typestr)
            equal(mapping.view(typestr).dtype, name)
        for name in ("bfloat16", "float8_e4m3fn"):
            assert not hasattr(mapping.view(name), "__cuda_array_interface__"), name
            raises(AttributeError, lambda: mapping.view(name).__cuda_array_interface__, name, "DLPack")


@case("DLPack has every field, versioned and not")
def _():
    write("f", bytes(4096))
    with resident.map(path("f")) as mapping:
        view = mapping.view("float32", (4, 3), offset=8, strides=(32, 4))
        equal(view.__dlpack_device__(), (2, 0))
        for max_version, name in ((None, b"dltensor"), ((0, 8), b"dltensor"),
                                  ((1, 0), b"dltensor_versioned"), ((1, 3), b"dltensor_versioned")):
            capsule = view.__dlpack__(stream=1, max_version=max_version)
            equal(capsule_name(capsule), name)
            got = Consumed(capsule)
            tensor = got.tensor
            equal((tensor.data, tensor.byte_offset), (mapping.address + 8, 0))
            equal((tensor.device_type, tensor.device_id), (2, 0))
            equal((tensor.code, tensor.bits, tensor.lanes), (2, 32, 1))
            equal((got.shape, got.strides), ((4, 3), (8, 1)))
            if got.versioned:
                equal((got.managed.major, got.managed.minor, got.managed.flags), (1, 0, 0))
            got.delete()
        for name, code, bits in (
            ("bool", 6, 8), ("int8", 0, 8), ("int64", 0, 64), ("uint16", 1, 16), ("float16", 2, 16),
            ("bfloat16", 4, 16), ("complex64", 5, 64), ("complex128", 5, 128),
            ("float8_e4m3fn", 10, 8), ("float8_e5m2", 12, 8), ("float8_e8m0fnu", 14, 8),
        ):
            got = Consumed(mapping.view(name).__dlpack__(max_version=(1, 1)))
            equal((got.tensor.code, got.tensor.bits, got.shape), (code, bits, (4096 * 8 // bits,)))
            got.delete()
        scalar = Consumed(mapping.view("int64", ()).__dlpack__())
        equal((scalar.tensor.ndim, scalar.shape), (0, ()))
        scalar.delete()


@case("DLPack refuses what it cannot do")
def _():
    write("f", bytes(64))
    with resident.map(path("f")) as mapping:
        view = mapping.view()
        raises(BufferError, lambda: view.__dlpack__(copy=True), "copy")
        raises(BufferError, lambda: view.__dlpack__(dl_device=(1, 0)), "(1, 0)")
        raises(BufferError, lambda: view.__dlpack__(dl_device=(2, 1)), "(2, 1)")
        raises(BufferError, lambda: mapping.view("float8_e5m2").__dlpack__(), "view('uint8')")
        raises(ValueError, lambda: view.__dlpack__(stream="x"), "stream")
        Consumed(view.__dlpack__(dl_device=(2, 0), copy=False, stream=-1)).delete()
    del view
    equal(shared(), (0, 0))


@case("read-only is told by both protocols")
def _():
    write("f", b"x" * 64)
    for mapping in (resident.map(path("f"), read_only=True), resident.map(open(path("f"), "rb", opener=direct))):
        with mapping:
            equal(mapping.read_only, True)
            view = mapping.view()
            equal(view.__cuda_array_interface__["data"][1], True)
            raises(BufferError, view.__dlpack__, "read-only")
            got = Consumed(view.__dlpack__(max_version=(1, 0)))
            equal(got.managed.flags, 1)
            equal(device.get(got.tensor.data, 4), b"xxxx")
            got.delete()
            equal(view.view("int32").read_only, True)
            del view
    with open(path("f"), "rb", opener=direct) as file:
        raises(ValueError, lambda: resident.map(file, read_only=False), "reading only")
    equal(shared(), (0, 0))


@case("views, arrays and tensors keep the memory, the last one unmaps")
def _():
    write("f", b"hello" * 10)
    mapping = resident.map(path("f"))
    view = mapping.view("uint8", 4)
    mapping.close()
    mapping.close()
    raises(ValueError, lambda: mapping.address, "closed")
    raises(ValueError, mapping.view, "closed")
    raises(ValueError, mapping.remap, "closed")
    raises(ValueError, mapping.sync, "closed")
    equal(shared(), (1, 0))
    owner = types.SimpleNamespace(base=view)  # as a library keeps the owner of an interface
    first = Consumed(view.__dlpack__())
    second = Consumed(view.__dlpack__(max_version=(1, 0)))
    del view, mapping
    gc.collect()
    equal(device.get(owner.base.__cuda_array_interface__["data"][0], 4), b"hell")
    del owner
    equal(device.get(first.tensor.data, 4), b"hell")
    equal(shared(), (1, 0))
    thread = threading.Thread(target=first.delete)
    thread.start()
    thread.join()
    equal(shared(), (1, 0))
    second.delete()
    equal(shared(), (0, 0))


@case("a capsule that nobody took lets go, also while an exception is on its way")
def _():
    write("f", bytes(64))
    view = resident.map(path("f")).view()
    view.__dlpack__()
    view.__dlpack__(max_version=(1, 0))
    equal(shared(), (1, 0))

    def refuses(capsule, number):
        return capsule, number

    raises(ZeroDivisionError, lambda: refuses(view.__dlpack__(), 1 / 0))
    taken = Consumed(view.__dlpack__())
    del view
    equal(shared(), (1, 0))
    taken.delete()
    equal(shared(), (0, 0))


@case("tensors that are left when Python ends do no harm")
def _():
    write("f", bytes(64))
    program = """
import sys; sys.path.insert(0, sys.argv[2])
import atexit, ctypes, threading, resident
from python_support import Consumed
view = resident.map(sys.argv[1]).view()
capsule = view.__dlpack__(); capsule.__doc__
taken = Consumed(view.__dlpack__(max_version=(1, 0)))
# A library's own destructor, after Python has gone.
libc = ctypes.CDLL(None)
libc.__cxa_atexit.argtypes = [ctypes.c_void_p] * 3
libc.__cxa_atexit(taken.managed.deleter, taken.pointer, None)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, path("f"), os.path.dirname(os.path.abspath(__file__))],
        capture_output=True, text=True, timeout=60,
    )
    equal((ended.returncode, ended.stderr), (0, ""))
    until(lambda: shared() == (0, 0))


@case("bounds, alignment and types are checked")
def _():
    write("f", bytes(100))
    with resident.map(path("f")) as mapping:
        view = mapping.view
        equal(view("int32", (-1, 5)).shape, (5, 5))
        equal(view("int32").shape, (25,))
        equal(view("uint8", 4, offset=96).nbytes, 4)
        equal(len(view("uint8", (7, 2))), 7)
        equal(view("uint8", 0, offset=100).nbytes, 0)
        raises(ValueError, lambda: view("uint8", 5, offset=96), "101", "100", "remap")
        raises(ValueError, lambda: view("uint8", (1 << 62, 1 << 62)), "past")
        raises(ValueError, lambda: view("uint8", (0, 1 << 63)), "64 bits")
        raises(ValueError, lambda: view("uint8", (1,) * 65), "64 dimensions")
        raises(ValueError, lambda: view("uint8", (2, 2), strides=(99, 1)), "past")
        raises(ValueError, lambda: view("uint8", (2, 2), strides=(-1, 1)), "negative")
        raises(ValueError, lambda: view("int32", (2,), strides=(6,)), "multiples of the 4")
        raises(ValueError, lambda: view("int32", (2, 2), strides=(4,)), "1 strides for 2")
        raises(ValueError, lambda: view("float32", 1, offset=2), "misaligned", "byte 2", "multiple of 4")
        raises(ValueError, lambda: view("uint8", offset=101), "offset 101")
        raises(ValueError, lambda: view("uint8", offset=-1), "offset -1")
        raises(ValueError, lambda: view("uint8", -2), "negative")
        raises(ValueError, lambda: view("float64"), "no whole number of float64")
        raises(ValueError, lambda: view("float16", (-1, 0)), "no whole number")
        raises(ValueError, lambda: view("float"), "'float'", "float32")
        raises(ValueError, lambda: view(">f4"), ">f4")
        raises(TypeError, lambda: view("uint8", 1.5))
        equal(view("float8_e5m2", (4, 4)).view("uint8").shape, (4, 4))
        equal(view("uint8", (4, 8), offset=4).view("float32").shape, (4, 2))
        raises(ValueError, lambda: view("uint8", (4, 3)).view("int16"), "3 bytes")
        raises(ValueError, lambda: view("uint8", (4, 4), offset=1).view("int16"), "misaligned")


@case("the library checks bounds itself")
def _():
    from resident._library import Tensor, check

    write("f", bytes(100))
    with resident.map(path("f")) as mapping:
        def tensor(shape, strides=None, offset=0, bits=8):
            extents = ctypes.c_int64 * len(shape)
            given = Tensor(offset=offset, shape=extents(*shape), dimensions=len(shape), code=1,
                           bits=bits, lanes=1, strides=extents(*strides) if strides else None)
            managed = ctypes.c_void_p()
            check(mapping._library.resident_dlpack(
                mapping._get(), given, 0, ctypes.byref(managed)))
            plain = DLManagedTensor.from_address(managed.value)
            strides = tuple(plain.tensor.strides[: len(shape)])
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(plain.deleter)(managed)
            return strides

        equal(tensor((4, 5, 5)), (25, 5, 1))
        equal(tensor((0, 1 << 62), offset=100), (1 << 62, 1))
        equal(tensor((50,), (2,)), (2,))
        large = 1 << 62
        for shape, strides, offset, bits in (
            ((101,), None, 0, 8), ((100,), None, 1, 8), ((26,), None, 0, 32), ((51,), (2,), 1, 8),
            ((-1,), None, 0, 8), ((2,), (-1,), 1, 8), ((large, large), None, 0, 8),
            ((large, 4), (1, 1), 0, 8), ((3,), (large,), 0, 64), ((1,), None, (1 << 64) - 1, 8),
            ((1,), None, 0, 0), ((1,) * 65, None, 0, 8),
        ):
            raises(resident.Error, lambda: tensor(shape, strides, offset, bits), errno=errno.EINVAL)
    equal(shared(), (0, 0))


@case("types of other libraries are known")
def _():
    write("f", bytes(64))
    torch_like = type("dtype", (), {"__str__": lambda self: "torch.bfloat16"})()
    numpy_like = types.SimpleNamespace(name="float32", str="<f4")
    scalar_like = type("uint16", (), {})
    with resident.map(path("f")) as mapping:
        equal(mapping.view(torch_like).dtype, "bfloat16")
        equal(mapping.view(numpy_like).dtype, "float32")
        equal(mapping.view(scalar_like).dtype, "uint16")
        equal(mapping.view("=f4").dtype, "float32")
        equal(mapping.view("f8").dtype, "float64")


@case("remap sees growth; the address changes only when nobody uses it")
def _():
    name = write("f", b"a" * 100)
    mapping = resident.map(name)
    first = mapping.address
    with open(name, "ab") as file:
        file.write(b"b" * (4 << 20))
    equal(mapping.nbytes, 100)
    view = mapping.view("uint8", 100)
    mapping.remap()
    equal((mapping.address, mapping.nbytes), (first, 100 + (4 << 20)))
    equal(device.get(mapping.address + 98, 4), b"aabb")
    os.truncate(name, 100 << 20)
    raises(resident.Error, mapping.remap, "outgrown", errno=errno.EBUSY)
    equal((mapping.address, device.get(view.address, 1)), (first, b"a"))
    tensor = Consumed(view.__dlpack__())
    del view
    raises(resident.Error, mapping.remap, errno=errno.EBUSY)
    tensor.delete()
    mapping.remap()
    equal(mapping.nbytes, 100 << 20)
    equal(device.get(mapping.address + 98, 4), b"aabb")
    mapping.close()
    equal(shared(), (0, 0))
    os.unlink(name)


@case("sync: what was written is there; shrinking takes nothing away")
def _():
    name = write("f", b"a" * 100)
    with resident.map(name) as mapping:
        descriptor = os.open(name, os.O_WRONLY)
        os.pwrite(descriptor, b"zz", 50)
        mapping.sync()
        equal(device.get(mapping.address + 49, 4), b"azza")
        os.close(descriptor)
        os.truncate(name, 10)
        equal(device.get(mapping.address, 3), b"aaa")
        mapping.remap()
        equal(mapping.nbytes, 10)
        raises(ValueError, lambda: mapping.view("uint8", 11), "past")


@case("errors have an errno and say what is wrong")
def _():
    write("empty", b"")
    raises(resident.Error, lambda: resident.map(path("missing")), "missing", errno=errno.ENOENT)
    raises(resident.Error, lambda: resident.map(path("empty")), "empty", errno=errno.ENODATA)
    raises(resident.Error, lambda: resident.map(mount), errno=errno.EISDIR)
    raises(resident.Error, lambda: resident.map(__file__), "not a file of residentfs", errno=errno.ENOTSUP)
    raises(resident.Error, lambda: resident.map(12345), errno=errno.EBADF)
    raises(TypeError, lambda: resident.map(None), "path")
    equal(issubclass(resident.Error, OSError), True)
    equal(shared(), (0, 0))


@case("a child of fork ends nothing for its parent")
def _():
    write("f", b"hello" * 10)
    mapping = resident.map(path("f"))
    view = mapping.view()
    tensor = Consumed(view.__dlpack__())
    child = os.fork()
    if child == 0:
        tensor.delete()
        del view
        mapping.close()
        os._exit(0)
    equal(os.waitpid(child, 0)[1], 0)
    equal(shared(), (1, 0))
    mapping.sync()
    equal(device.get(view.address, 5), b"hello")
    tensor.delete()
    del view
    mapping.close()
    equal(shared(), (0, 0))


@case("1000 mappings with views and tensors leave nothing")
def _():
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    def resident_kib():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4

    write("f", bytes(1 << 20))
    before = descriptors()
    for i in range(1000):
        with resident.map(path("f")) as mapping:
            Consumed(mapping.view("float32").__dlpack__(max_version=(1, 0))).delete()
            mapping.view("int16").__cuda_array_interface__
        if i == 100:
            start = resident_kib()
    equal(descriptors(), before)
    equal(shared(), (0, 0))
    grown = resident_kib() - start
    if "asan" not in os.environ.get("LD_PRELOAD", ""):  # which keeps freed memory for a while
        assert grown < 4096, f"{grown} KiB of host memory in 900 mappings"


run()
