"""Safetensors files as tensors over their own memory."""

import json
import os

from . import _dtypes
from ._mapping import map

# The limit of the format's own reader.
HEADER_MAX = 100_000_000

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}


class Tensors(dict):
    """Name → View. Also mapping, and metadata: the strings that the file says about itself.

    close(), or the end of a with block, lets go of the mapping and drops the views.
    """

    def __init__(self, mapping, metadata):
        super().__init__()
        self.mapping = mapping
        self.metadata = metadata

    def close(self):
        self.clear()
        self.mapping.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def safetensors(file, names=None, read_only=None):
    """Maps a safetensors file of residentfs: a path, or a binary file. Returns Tensors.

    The header is read through the file. NAMES: only these tensors. ValueError, which says what and
    where, if the file is not as the format has it, or if the tensors cannot be used where they are.
    """
    if isinstance(file, (str, bytes, os.PathLike)):
        with open(file, "rb", buffering=0) as opened:
            header, data, length = _read_header(opened.fileno())
    else:
        header, data, length = _read_header(file.fileno())
    metadata = _metadata(header.pop("__metadata__", {}))
    layout = _layout(header, length - data)
    if names is not None:
        layout = {name: _pick(layout, name) for name in names}
    plan = {name: _plan(name, data, *layout[name]) for name in layout}
    mapping = map(file, read_only)
    try:
        tensors = Tensors(mapping, metadata)
        for name, (dtype, shape, offset) in plan.items():
            tensors[name] = mapping.view(dtype, shape, offset)
    except BaseException:
        mapping.close()
        raise
    return tensors


def _pick(layout, name):
    if name not in layout:
        raise KeyError(name)
    return layout[name]


def _read_exactly(descriptor, count, offset):
    parts = []
    while count:
        part = os.pread(descriptor, min(count, 1 << 20), offset)
        if not part:
            raise ValueError("not a safetensors file: it ends within its header")
        parts.append(part)
        count -= len(part)
        offset += len(part)
    return b"".join(parts)


def _once(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _no_constant(text):
    raise ValueError(f"{text} is not JSON")


def _read_header(descriptor):
    """The header, where the data begins, and the file's length."""
    length = os.fstat(descriptor).st_size
    size = int.from_bytes(_read_exactly(descriptor, 8, 0), "little")
    if size > HEADER_MAX or size > length - 8:
        raise ValueError(
            f"not a safetensors file: its header would have {size} bytes, of {length} in all "
            f"and {HEADER_MAX} at most"
        )
    text = _read_exactly(descriptor, size, 8)
    try:
        header = json.loads(
            text.decode(), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the safetensors header is not sound JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("the safetensors header is not a JSON object")
    return header, 8 + size, length


def _metadata(given):
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise ValueError("__metadata__ of the safetensors header is not a map of strings")
    return given


def _count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _layout(header, available):
    """Name → (dtype of the format, shape, begin, end); checked to fill the data without overlap."""
    layout = {}
    for name, entry in header.items():
        entry = entry if isinstance(entry, dict) else {}
        dtype, shape, span = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if (
            not isinstance(dtype, str)
            or not isinstance(shape, list)
            or not all(_count(extent) for extent in shape)
            or not isinstance(span, list)
            or len(span) != 2
            or not all(_count(offset) for offset in span)
        ):
            raise ValueError(f"tensor {name!r}: dtype, shape and data_offsets are not as they must be")
        begin, end = span
        if not begin <= end <= available:
            raise ValueError(
                f"tensor {name!r}: bytes {begin} to {end} are not within the {available} of data"
            )
        layout[name] = (dtype, tuple(shape), begin, end)
    at = 0
    for name in sorted(layout, key=lambda name: layout[name][2:]):
        if layout[name][2] != at:
            raise ValueError(f"tensor {name!r}: begins at byte {layout[name][2]} of data, not at {at}")
        at = layout[name][3]
    if at != available:
        raise ValueError(f"the tensors have {at} bytes, the file {available} of data")
    return layout


def _plan(name, data, stored, shape, begin, end):
    """(DType, shape, offset in the file)"""
    if stored not in _DTYPES:
        raise ValueError(
            f"tensor {name!r}: no array has elements of type {stored}; name the others (names=), "
            "or view its bytes"
        )
    dtype = _dtypes.find(_DTYPES[stored])
    # One after another, so that a hostile shape makes no huge number.
    nbytes = dtype.itemsize
    for extent in shape if 0 not in shape else (0,):
        nbytes *= extent
        if nbytes > end - begin:
            break
    if nbytes != end - begin:
        raise ValueError(
            f"tensor {name!r}: shape {str(list(shape))[:200]} of {stored} has not the "
            f"{end - begin} bytes of its data_offsets"
        )
    if nbytes and (data + begin) % dtype.itemsize:
        raise ValueError(
            f"tensor {name!r}: begins at byte {data + begin} of the file, but kernels need a "
            f"multiple of {dtype.itemsize} for {stored}; have the file written anew by safetensors "
            "0.3 or later, which aligns, or name the others (names=)"
        )
    return dtype, shape, data + begin
