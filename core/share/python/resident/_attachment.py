"""Memory of this process, shown as files."""

import contextlib
import ctypes
import os

from ._library import check, library
from ._mapping import c_order

# What is attached stays so although nobody keeps the Attachment.
_attached = {}


def attach(path, obj, mode=0o644):
    """Makes a file of residentfs whose content is the memory of OBJ. Returns an Attachment.

    OBJ is a tensor or an array on the device, in C order: of PyTorch, CuPy, Numba, JAX, or any
    with __cuda_array_interface__; or a pair (pointer, nbytes). It is kept alive until detach();
    without, for as long as the process lives. PATH must not exist.

    Reads of the file see what kernels wrote if their work has been synchronised.
    """
    pointer, nbytes = _memory(obj)
    return Attachment(path, obj, pointer, nbytes, mode)


def _memory(obj):
    """Address and length in bytes."""
    if isinstance(obj, tuple) and len(obj) == 2:
        pointer, nbytes = obj
        return int(pointer), int(nbytes)
    # Tensors of PyTorch that require a gradient or are bfloat16 refuse the interface below.
    if hasattr(obj, "data_ptr") and hasattr(obj, "is_contiguous"):
        if not obj.is_cuda:
            raise TypeError("the tensor is not on a CUDA device")
        if not obj.is_contiguous():
            raise ValueError("the tensor is not contiguous: attach tensor.contiguous()")
        return obj.data_ptr(), obj.numel() * obj.element_size()
    # Nor has JAX it for bfloat16. Its arrays are in C order.
    if hasattr(obj, "unsafe_buffer_pointer") and hasattr(obj, "nbytes"):
        if any(device.platform not in ("gpu", "cuda") for device in obj.devices()):
            raise TypeError("the array is not on a CUDA device")
        return obj.unsafe_buffer_pointer(), obj.nbytes
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(
            f"{type(obj).__name__} has no __cuda_array_interface__: attach takes arrays on a CUDA "
            "device, or (pointer, nbytes)"
        )
    if interface.get("mask") is not None:
        raise ValueError("the array is masked: attach its data alone")
    shape = tuple(interface["shape"])
    itemsize = int(interface["typestr"][2:])
    if interface["typestr"][1] == "U":
        itemsize *= 4
    contiguous = c_order(shape, itemsize)
    strides = interface.get("strides") or contiguous
    nbytes = itemsize
    for extent in shape:
        nbytes *= extent
    if nbytes and any(n > 1 and s != c for n, s, c in zip(shape, strides, contiguous)):
        raise ValueError("the array is not contiguous in C order: attach a contiguous copy")
    return interface["data"][0], nbytes


class Attachment:
    """A file that shows memory of this process. Made by attach().

    After detach() the file is still there, and gives EIO. The end of a with block also removes it.
    path, pointer, nbytes, closed.
    """

    def __init__(self, path, obj, pointer, nbytes, mode):
        handle = ctypes.c_void_p()
        self._library = library()
        # From the root, so that it can be removed after a chdir.
        self.path = os.path.abspath(os.fsdecode(path))
        self.pointer, self.nbytes = pointer, nbytes
        check(
            self._library.resident_attach(
                os.fsencode(path), pointer, nbytes, mode, ctypes.byref(handle)
            )
        )
        self._ino = os.stat(self.path).st_ino
        _attached[id(self)] = (self, handle.value, obj)

    @property
    def closed(self):
        return id(self) not in _attached

    def detach(self, unlink=False):
        """The daemon has let go of the memory when this returns. UNLINK also removes the file."""
        entry = _attached.pop(id(self), None)  # the object stays until the daemon has let go
        if entry is not None:
            self._library.resident_detach(entry[1])
        if unlink:
            # Another file may have the name by now.
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self.path).st_ino == self._ino:
                    os.unlink(self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.detach(unlink=True)

    def __repr__(self):
        state = ", detached" if self.closed else ""
        return f"<resident.Attachment {self.path}: {self.nbytes} bytes at {self.pointer:#x}{state}>"
