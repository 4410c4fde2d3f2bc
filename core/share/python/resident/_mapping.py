"""Files mapped into the device's addresses, and arrays over them."""

import ctypes
import fcntl
import math
import operator
import os
import threading

from . import _dtypes
from ._library import READ_ONLY, Tensor, check, library

CUDA = 2  # kDLCUDA

# A capsule does not own its name, and may outlive this module.
_PLAIN = ctypes.create_string_buffer(b"dltensor")
_VERSIONED = ctypes.create_string_buffer(b"dltensor_versioned")
for _name in (_PLAIN, _VERSIONED):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_name))

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]


def map(file, read_only=None):
    """Maps a file of residentfs: a path, an open file, or a descriptor. Returns a Mapping.

    The file must be one that the caller may read and write, also for read_only=True, by which
    kernels must not write: where the driver can, writing is then a fault (Mapping.protected).
    The default is as the file is open; read-write for a path. Holes of the file get memory.
    """
    if isinstance(file, (str, bytes, os.PathLike)):
        return Mapping(None, os.fsencode(file), bool(read_only))
    descriptor = file
    if not isinstance(file, int):
        if not hasattr(file, "fileno"):
            raise TypeError(f"{type(file).__name__} is no path, open file or descriptor")
        if hasattr(file, "flush"):
            file.flush()  # what is in Python's buffer is not in the file yet
        descriptor = file.fileno()
    try:
        writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        writable = True  # the library says what is wrong with it
    if read_only is None:
        read_only = not writable
    elif not read_only and not writable:
        raise ValueError("the file is open for reading only: open it for both, or say read_only=True")
    return Mapping(descriptor, None, bool(read_only))


class Mapping:
    """A file's memory in this process. Made by map().

    close(), or the end of a with block, lets go of it. The memory stays mapped for as long as
    views of it, or arrays and tensors made from them, are left; then it is unmapped, once the
    work of the device has ended. Methods may be called from any thread.
    """

    def __init__(self, descriptor, path, read_only):
        self._handle = None
        self._lock = threading.Lock()
        self._library = library()
        handle = ctypes.c_void_p()
        flags = READ_ONLY if read_only else 0
        if path is not None:
            check(self._library.resident_map_path(path, flags, ctypes.byref(handle)))
        else:
            check(self._library.resident_map(descriptor, flags, ctypes.byref(handle)))
        self._handle = handle.value
        self._read_only = read_only

    def _get(self):
        if self._handle is None:
            raise ValueError("the mapping is closed")
        return self._handle

    @property
    def address(self):
        """Of the file's first byte, on the device. remap() may change it."""
        with self._lock:
            return self._library.resident_address(self._get())

    @property
    def nbytes(self):
        """The file's length when it was mapped or remapped."""
        with self._lock:
            return self._library.resident_length(self._get())

    @property
    def device(self):
        """The device's number, as torch.device("cuda", number) has it in this process."""
        with self._lock:
            return self._library.resident_device(self._get())

    @property
    def read_only(self):
        return self._read_only

    @property
    def protected(self):
        """Whether the driver refuses writes of kernels; else read_only is only what arrays say."""
        with self._lock:
            return bool(self._library.resident_is_read_only(self._get()))

    @property
    def closed(self):
        return self._handle is None

    def view(self, dtype="uint8", shape=None, offset=0, strides=None):
        """A View: SHAPE elements of DTYPE from OFFSET on; all that is there for no shape.

        OFFSET and STRIDES are bytes. One extent of the shape may be -1.
        """
        with self._lock:
            return View(self, _dtypes.find(dtype), shape, offset, strides)

    def remap(self):
        """Looks anew at the file, which may have grown: address and nbytes may change.

        Error with errno.EBUSY if the address would have to change and views are left.
        """
        with self._lock:
            check(self._library.resident_remap(self._get()))

    def sync(self):
        """What was written through the file before is seen by kernels that start after."""
        with self._lock:
            check(self._library.resident_sync(self._get()))

    def close(self):
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._library.resident_unmap(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        # Nobody else has it: no lock.
        if getattr(self, "_handle", None) is not None:
            self._library.resident_unmap(self._handle)

    def __repr__(self):
        if self.closed:
            return "<resident.Mapping, closed>"
        return f"<resident.Mapping of {self.nbytes} bytes at {self.address:#x} on cuda:{self.device}>"


def c_order(shape, itemsize):
    """Strides in bytes."""
    strides = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= extent
    return tuple(reversed(strides))


def _extents(shape, available, dtype):
    """A shape as a tuple, with -1 replaced."""
    if shape is None:
        shape = (-1,)
    elif not hasattr(shape, "__iter__"):
        shape = (shape,)
    shape = tuple(operator.index(extent) for extent in shape)
    if shape.count(-1) == 1:
        row = dtype.itemsize * math.prod(extent for extent in shape if extent != -1)
        if row <= 0 or available % row:
            raise ValueError(
                f"{available} bytes are no whole number of "
                + (dtype.name if shape == (-1,) else f"{shape} of {dtype.name}")
            )
        shape = tuple(available // row if extent == -1 else extent for extent in shape)
    if any(extent < 0 for extent in shape):
        raise ValueError(f"shape {shape} has negative extents")
    return shape


class View:
    """An array over mapped memory, for other libraries to take. Made by Mapping.view().

    It keeps the memory mapped, and so does what is made from it. shape, strides (bytes), dtype
    (its name), itemsize, nbytes, address, device, offset (in the file), read_only.
    """

    def __init__(self, mapping, dtype, shape, offset, strides):
        # With the mapping's lock held, or from a view of it.
        self._handle = None
        calls = self._library = mapping._library
        handle = mapping._get()
        length = calls.resident_length(handle)
        offset = operator.index(offset)
        if not 0 <= offset <= length:
            raise ValueError(f"offset {offset} is not inside the file, which has {length} bytes")
        shape = _extents(shape, length - offset, dtype)
        contiguous = c_order(shape, dtype.itemsize)
        if strides is None:
            strides = contiguous
        strides = tuple(operator.index(stride) for stride in strides)
        if len(strides) != len(shape):
            raise ValueError(f"{len(strides)} strides for {len(shape)} dimensions")
        if any(stride < 0 or stride % dtype.itemsize for stride in strides):
            raise ValueError(
                f"strides {strides} are bytes, and multiples of the {dtype.itemsize} of "
                f"{dtype.name}, not negative"
            )
        count = math.prod(shape)
        if offset % dtype.itemsize and count:
            raise ValueError(
                f"{dtype.name} at byte {offset} is misaligned: kernels need a multiple of "
                f"{dtype.itemsize}; view the bytes as uint8 and copy them"
            )
        end = offset
        if count:
            end += dtype.itemsize + sum((n - 1) * stride for n, stride in zip(shape, strides))
        if end > length:
            raise ValueError(
                f"shape {shape} of {dtype.name} from byte {offset} on ends at byte {end}, past the "
                f"file's {length}; remap() sees a file that has grown"
            )
        if len(shape) > 64 or any(value >= 1 << 63 for value in shape + strides):
            raise ValueError("more than 64 dimensions, or extents past 64 bits")
        self._dtype = dtype
        self.shape, self.strides, self.offset = shape, strides, offset
        self._is_contiguous = count == 0 or all(
            n == 1 or given == wanted for n, given, wanted in zip(shape, strides, contiguous)
        )
        self.nbytes = count * dtype.itemsize
        self.address = calls.resident_address(handle) + offset
        self.device = calls.resident_device(handle)
        self.read_only = mapping._read_only
        self._read_only = self.read_only
        calls.resident_hold(handle)
        self._handle = handle

    def _get(self):
        return self._handle

    dtype = property(lambda self: self._dtype.name)
    itemsize = property(lambda self: self._dtype.itemsize)
    ndim = property(lambda self: len(self.shape))

    def view(self, dtype):
        """The same bytes as elements of another type; the last extent changes with its size."""
        dtype = _dtypes.find(dtype)
        if not self._is_contiguous or not self.shape:
            raise ValueError("only views in C order of one dimension or more")
        last = self.shape[-1] * self.itemsize
        if last % dtype.itemsize:
            raise ValueError(f"{last} bytes are no whole number of {dtype.name}")
        shape = self.shape[:-1] + (last // dtype.itemsize,)
        return View(self, dtype, shape, self.offset, None)

    @property
    def __cuda_array_interface__(self):
        if self._dtype.typestr is None:
            raise AttributeError(
                f"the CUDA Array Interface has no {self.dtype}: use DLPack (from_dlpack), or "
                "view('uint8')"
            )
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self._dtype.typestr,
            "data": (self.address if self.nbytes else 0, self.read_only),
            "strides": None if self._is_contiguous else self.strides,
            # No work that was started here is under way.
            "stream": None,
        }

    def __dlpack_device__(self):
        return (CUDA, self.device)

    def __dlpack__(self, stream=None, *, max_version=None, dl_device=None, copy=None):
        # No stream has work of ours, so any may use the memory.
        if stream is not None and (not isinstance(stream, int) or stream < -1):
            raise ValueError(f"stream {stream!r} is not None, -1, or a CUDA stream")
        if copy:
            raise BufferError("the memory is the file's: no copy is made; copy what you get")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(
                f"the memory is on cuda:{self.device}: no copy is made to DLPack device "
                f"{tuple(dl_device)}"
            )
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        if not versioned and self.read_only:
            raise BufferError(
                "the mapping is read-only, of which DLPack before 1.0 cannot tell: map the file "
                "read-write, or take the view by __cuda_array_interface__"
            )
        if not versioned and self._dtype.code > _dtypes.BOOL:
            raise BufferError(
                f"DLPack before 1.0 has no {self.dtype}: use view('uint8'), and reinterpret it"
            )
        dimensions = len(self.shape)
        extents = ctypes.c_int64 * dimensions
        tensor = Tensor(
            offset=self.offset,
            shape=extents(*self.shape),
            strides=extents(*(stride // self.itemsize for stride in self.strides)),
            dimensions=dimensions,
            code=self._dtype.code,
            bits=self._dtype.bits,
            lanes=1,
            read_only=self.read_only,
        )
        managed = ctypes.c_void_p()
        check(self._library.resident_dlpack(self._handle, tensor, versioned, ctypes.byref(managed)))
        return _new_capsule(
            managed,
            ctypes.addressof(_VERSIONED if versioned else _PLAIN),
            ctypes.cast(self._library.resident_dlpack_capsule_end, ctypes.c_void_p),
        )

    def __len__(self):
        if not self.shape:
            raise TypeError("a view without dimensions has no length")
        return self.shape[0]

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self._library.resident_unmap(self._handle)

    def __repr__(self):
        return f"<resident.View {self.dtype}{list(self.shape)} at {self.address:#x} on cuda:{self.device}>"
