"""Types of elements, by the names that NumPy and ml_dtypes have for them."""

import sys
from typing import NamedTuple, Optional


class DType(NamedTuple):
    name: str
    code: int  # DLDataTypeCode
    bits: int
    typestr: Optional[str]  # of the array interfaces; None: they have no such type

    @property
    def itemsize(self):
        return self.bits // 8


INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
_ORDER = "<" if sys.byteorder == "little" else ">"


def _types():
    yield DType("bool", BOOL, 8, "|b1")
    for bits in (8, 16, 32, 64):
        order = _ORDER if bits > 8 else "|"
        yield DType(f"int{bits}", INT, bits, f"{order}i{bits // 8}")
        yield DType(f"uint{bits}", UINT, bits, f"{order}u{bits // 8}")
    for bits in (16, 32, 64):
        yield DType(f"float{bits}", FLOAT, bits, f"{_ORDER}f{bits // 8}")
    for bits in (64, 128):
        yield DType(f"complex{bits}", COMPLEX, bits, f"{_ORDER}c{bits // 8}")
    yield DType("bfloat16", BFLOAT, 16, None)
    # Codes of DLPack 1.1.
    for code, name in enumerate(
        ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"), 7
    ):
        yield DType(f"float8_{name}", code, 8, None)


TYPES = {dtype.name: dtype for dtype in _types()}
_BY_TYPESTR = {dtype.typestr: dtype for dtype in TYPES.values() if dtype.typestr}


def find(given):
    """A name, a typestr, or a type of NumPy, ml_dtypes, PyTorch, CuPy or JAX."""
    if isinstance(given, DType):
        return given
    name = given
    if not isinstance(given, str):
        # A NumPy scalar type has a descriptor for "name", a NumPy dtype a string.
        name = getattr(given, "name", None)
        if not isinstance(name, str):
            name = getattr(given, "__name__", None)
        if not isinstance(name, str):
            name = str(given)
    name = name.rpartition(".")[2]
    found = TYPES.get(name) or _BY_TYPESTR.get(name)
    if found is None and len(name) > 1 and name[0] in "=<|":
        found = _BY_TYPESTR.get(_ORDER + name[1:]) if name[0] != "|" else None
    elif found is None:
        found = _BY_TYPESTR.get(_ORDER + name) or _BY_TYPESTR.get("|" + name)
    if found is None:
        raise ValueError(f"dtype {given!r} is not one of: {', '.join(TYPES)}")
    return found
