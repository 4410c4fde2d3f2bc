"""libresident by ctypes."""

import ctypes
import os
import threading
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p

NAME = "libresident.so.1"
READ_ONLY = 1


class Error(OSError):
    """What libresident refused: errno, and one line that says what to do."""


class Tensor(ctypes.Structure):
    """struct resident_tensor"""

    _fields_ = [
        ("offset", ctypes.c_uint64),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("dimensions", c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("read_only", c_int),
    ]


# NAME: (result, arguments…)
_FUNCTIONS = {
    "resident_map": (c_int, c_int, c_uint, POINTER(c_void_p)),
    "resident_map_path": (c_int, c_char_p, c_uint, POINTER(c_void_p)),
    "resident_remap": (c_int, c_void_p),
    "resident_sync": (c_int, c_void_p),
    "resident_unmap": (c_int, c_void_p),
    "resident_hold": (None, c_void_p),
    "resident_address": (ctypes.c_uint64, c_void_p),
    "resident_length": (c_size_t, c_void_p),
    "resident_device": (c_int, c_void_p),
    "resident_is_read_only": (c_int, c_void_p),
    "resident_dlpack": (c_int, c_void_p, POINTER(Tensor), c_int, POINTER(c_void_p)),
    # mode_t has the size of an int on Linux.
    "resident_attach": (c_int, c_char_p, ctypes.c_uint64, c_size_t, c_uint, POINTER(c_void_p)),
    "resident_detach": (c_int, c_void_p),
    "resident_error": (c_char_p,),
}

_lock = threading.Lock()
_opened = None


def _open():
    given = os.environ.get("RESIDENT_LIBRARY")
    if given:
        return ctypes.CDLL(given)
    folder = os.path.dirname(os.path.abspath(__file__))
    for near in (folder, os.path.dirname(folder)):
        if os.path.exists(os.path.join(near, NAME)):
            return ctypes.CDLL(os.path.join(near, NAME))
    try:
        return ctypes.CDLL(NAME)
    except OSError as error:
        raise ImportError(
            f"{NAME} is not found ({error}): install residentfs, or name the library in "
            "RESIDENT_LIBRARY"
        ) from None


def library():
    """Opened at first use. ImportError if there is none."""
    global _opened
    with _lock:
        if _opened is None:
            opened = _open()
            for name, (result, *arguments) in _FUNCTIONS.items():
                function = getattr(opened, name)
                function.restype = result
                function.argtypes = arguments
            _opened = opened
        return _opened


def check(result):
    """Raises Error if a function of the library returned a negative errno. In the same thread."""
    if result < 0:
        raise Error(-result, library().resident_error().decode(errors="replace"))
