"""What a file of `torch.save` says, read without torch and without running it.

A pickle is a program. Here its instructions only build plain data and descriptions of tensors, and every other one is refused;
nothing in the file is called, decompressed or allocated by a number that the file states. By hand, because `torch.load` (2.13,
`weights_only=True`) does allocate so: a compressed file of 1 MB took 955 MB. Besides, a merge needs no torch then.
"""

from __future__ import annotations

import mmap
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ZIP = b"PK\x03\x04"  # by which torch, too, tells its two formats apart
_LOCAL = struct.Struct("<4s22xHH")  # of a zip's entry: signature, lengths of name and extra field
_OLD_MAGIC, _OLD_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # before torch 1.6
_MOST_DIMENSIONS = 32
_MOST_PROGRAM = 32 << 20  # bytes of a pickle, each of which may make an object of 72
_SIZES = {"float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4, "float16": 2, "bfloat16": 2}
_SIZES |= {"int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "complex32": 4}
_STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
}
_STORAGES |= {"Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "Untyped": "uint8"}
_STORAGES |= {"ComplexFloat": "complex64", "ComplexDouble": "complex128"}
_DTYPE = re.compile(r"q?u?int\d+\w*|b?float\d+\w*|complex\d+|bool|bits\d+\w*")


@dataclass(frozen=True)
class Storage:
    """The bytes of one or more tensors: where they lie in the file is known when all of it was read."""

    key: str
    dtype: str
    numel: int


@dataclass(frozen=True)
class StoredTensor:
    """A view of a storage, in elements; every element lies inside it. `odd` says what it is if no dense tensor of numbers."""

    dtype: str
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    storage: Storage | None = None
    odd: str = ""

    @property
    def span(self) -> tuple[int, int]:
        """The first element's place in the storage, and the place after the last."""
        if 0 in self.shape:  # an empty part of a tensor may begin after its end
            return 0, 0
        return self.offset, self.offset + 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))


@dataclass(frozen=True)
class TorchFile:
    """A file that was read: what it holds, and its mapped bytes."""

    content: Any
    bytes: memoryview
    places: Mapping[str, tuple[int, int]]  # of each storage: its first byte, and how many there are

    def part(self, tensor: StoredTensor) -> memoryview:
        """The bytes of a tensor's storage."""
        assert tensor.storage is not None
        first, size = self.places[tensor.storage.key]
        return self.bytes[first : first + size]


def read(path: Path) -> TorchFile:
    """Everything in the file; every fault is a ValueError or OSError that says why."""
    with path.open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _read_zip(path, held) if held[:4] == _ZIP else _read_old(held)


def _read_zip(path: Path, held: mmap.mmap) -> TorchFile:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error) as fault:
        raise ValueError(f"a damaged zip file: {fault}") from None
    places: dict[str, tuple[int, int]] = {}
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"its entry {entry.filename!r:.80} is compressed, which torch never does")
        if entry.filename in places:
            raise ValueError(f"its entry {entry.filename!r:.80} is there twice")
        places[entry.filename] = _place(entry, held)
    programs = [name for name in places if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(programs) != 1:
        raise ValueError("a zip file without one data.pkl, so none of torch's")
    folder = programs[0].removesuffix("data.pkl")
    order = places.get(f"{folder}byteorder")
    if order is not None and held[order[0] : sum(order)] != b"little":
        raise ValueError("its numbers are not stored little endian")
    storages = {
        name.removeprefix(f"{folder}data/"): where for name, where in places.items() if name.startswith(f"{folder}data/")
    }
    first, size = places[programs[0]]
    machine = _Machine()
    content = machine.run(held[first : first + size])[0]
    return _checked(content, machine.storages, held, storages)


def _place(entry: zipfile.ZipInfo, held: mmap.mmap) -> tuple[int, int]:
    head = held[entry.header_offset : entry.header_offset + _LOCAL.size] if entry.header_offset >= 0 else b""
    if len(head) < _LOCAL.size or not head.startswith(_ZIP):
        raise ValueError(f"a damaged zip file: its entry {entry.filename!r:.80} is not where it should be")
    _, name, extra = _LOCAL.unpack(head)
    first = entry.header_offset + _LOCAL.size + name + extra
    if first + entry.file_size > len(held):
        raise ValueError(f"a damaged zip file: its entry {entry.filename!r:.80} ends outside")
    return first, entry.file_size


def _read_old(held: mmap.mmap) -> TorchFile:
    """Pickles one after another (a mark, a version, the system, the content, keys), then the storages in the keys' order."""
    machine, found, at = _Machine(), [], 0
    for _ in range(5):
        value, used = machine.run(held, at)
        found.append(value)
        at += used
        if found[0] != _OLD_MAGIC:
            raise ValueError("no file of torch.save")
    _, version, system, content, keys = found
    if version != _OLD_PROTOCOL or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise ValueError("saved by another version of torch, or not little endian")
    places: dict[str, tuple[int, int]] = {}
    for key in keys if isinstance(keys, list) else [keys]:
        storage = machine.storages.get(key) if isinstance(key, str) else None
        if storage is None or key in places or at + 8 > len(held):
            raise ValueError("damaged: its storages are not those that it names")
        size = storage.numel * _SIZES[storage.dtype]
        if int.from_bytes(held[at : at + 8], "little") != storage.numel or at + 8 + size > len(held):
            raise ValueError(f"damaged: storage {key!r:.40} has not the size that is said")
        places[key] = at + 8, size
        at += 8 + size
    return _checked(content, machine.storages, held, places)


def _checked(
    content: Any, storages: Mapping[str, Storage], held: mmap.mmap, places: Mapping[str, tuple[int, int]]
) -> TorchFile:
    for key, storage in storages.items():
        if key not in places or places[key][1] < storage.numel * _SIZES[storage.dtype]:
            raise ValueError(f"damaged: storage {key!r:.40} is not there, or shorter than is said")
    return TorchFile(content, memoryview(held), places)


class _Machine:
    """Carries out the instructions that `torch.save` writes. A global is a name of `_CALLS` or a constant, never an object."""

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}

    def run(self, program: Any, at: int = 0) -> tuple[Any, int]:
        """The value of one pickle, and how many bytes it has; of a mapped file, the one that begins there."""
        if isinstance(program, mmap.mmap):
            program.seek(at)
        stack: list[Any] = []
        marks: list[list[Any]] = []
        memo: dict[int, Any] = {}
        given: Any
        try:
            for op, given, place in pickletools.genops(program):
                name = op.name
                if (place or 0) - at > _MOST_PROGRAM:
                    raise ValueError(f"its pickle has more than {_MOST_PROGRAM:,} bytes, beside its numbers")
                if name in _PUSHED:
                    stack.append(given)
                elif name in _MADE:
                    stack.append(_MADE[name]())
                elif name in _STORED:
                    memo[len(memo) if given is None else given] = stack[-1]
                elif name in ("BINGET", "LONG_BINGET"):
                    stack.append(memo[given])
                elif name == "MARK":
                    marks.append(stack)
                    stack = []
                elif name in _TAKEN:
                    items, stack = stack, marks.pop()
                    _TAKEN[name](stack, items)
                elif name in _TUPLES:
                    count = _TUPLES[name]
                    stack[len(stack) - count :] = [tuple(stack[len(stack) - count :])]
                elif name == "APPEND":
                    _append(stack, [stack.pop()])
                elif name == "SETITEM":
                    pair = [stack.pop(-2), stack.pop()]
                    _set(stack, pair)
                elif name in ("GLOBAL", "STACK_GLOBAL"):
                    module, of = given.split(" ", 1) if given is not None else (stack.pop(-2), stack.pop())
                    stack.append(_global(module, of))
                elif name == "REDUCE":
                    arguments = stack.pop()
                    stack.append(_call(stack.pop(), arguments))
                elif name == "BUILD":
                    stack.pop()  # attributes: of a state dict its versions, none of which a merge needs
                elif name == "BINPERSID":
                    stack.append(self._storage(stack.pop()))
                elif name == "STOP":
                    return stack.pop(), (place or 0) + 1 - at
                elif name not in ("PROTO", "FRAME"):
                    raise ValueError(f"its pickle has the instruction {name}, which no state dict needs")
        except (IndexError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as fault:
            raise ValueError(f"a damaged pickle ({type(fault).__name__})") from None
        raise ValueError("a pickle without an end")

    def _storage(self, given: Any) -> Storage:
        if not isinstance(given, tuple) or len(given) not in (5, 6) or given[0] != "storage" or given[5:] not in ((), (None,)):
            raise ValueError("it refers to something that is no storage")
        _, kind, key, _, numel = given[:5]
        if not isinstance(kind, _Constant) or not isinstance(key, str) or type(numel) is not int or numel < 0:
            raise ValueError("it refers to a storage without a format, a name and a size")
        dtype = _STORAGES.get(kind.name.removesuffix("Storage"))
        if dtype is None:
            raise ValueError(f"its numbers are in {kind.name}, which is not supported")
        found = Storage(key, dtype, numel)
        if self.storages.setdefault(key, found) != found:
            raise ValueError(f"damaged: storage {key!r:.40} is described in two ways")
        return found


@dataclass(frozen=True)
class _Constant:
    """A global that is not called: a format of numbers, of a storage, or a class of tensors."""

    name: str


@dataclass(frozen=True)
class _Function:
    name: str


def _global(module: Any, name: Any) -> _Constant | _Function:
    whole = f"{module}.{name}"
    if whole in _CALLS:
        return _Function(whole)
    storage = module in ("torch", "torch.cuda", "torch.storage") and str(name).endswith("Storage")
    if storage or whole in _CLASSES or (module == "torch" and _DTYPE.fullmatch(str(name))):
        return _Constant(name)
    raise ValueError(f"its pickle needs {whole!r:.120}")


def _call(function: Any, given: Any) -> Any:
    if not isinstance(function, _Function) or not isinstance(given, tuple):
        raise ValueError("its pickle calls what is no function")
    return _CALLS[function.name](*given)


def _append(stack: list[Any], items: list[Any]) -> None:
    if not isinstance(stack[-1], list):
        raise ValueError("a damaged pickle (items of no list)")
    stack[-1].extend(items)


def _set(stack: list[Any], items: list[Any]) -> None:
    """Only plain keys: the hash of tuples in tuples may take forever."""
    held = stack[-1]
    if not isinstance(held, dict) or len(items) % 2:
        raise ValueError("a damaged pickle (items of no dictionary)")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str) and not (type(key) is int and abs(key) < 2**31):
            raise ValueError(f"a key is a {type(key).__name__}; state dicts have names")
        held[key] = value


def _as_tuple(stack: list[Any], items: list[Any]) -> None:
    stack.append(tuple(items))


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> StoredTensor:
    return _view(storage, storage.dtype, offset, shape, stride, rest[2:])


def _typed_tensor(storage: Any, offset: Any, shape: Any, stride: Any, _: Any, __: Any, dtype: Any, *rest: Any) -> StoredTensor:
    return _view(storage, dtype.name, offset, shape, stride, rest)


def _view(storage: Any, dtype: str, offset: Any, shape: Any, stride: Any, rest: tuple[Any, ...]) -> StoredTensor:
    if not (isinstance(shape, tuple) and isinstance(stride, tuple) and len(shape) == len(stride) <= _MOST_DIMENSIONS):
        raise ValueError("a tensor has an impossible shape")
    if not all(type(count) is int and 0 <= count < 2**63 for count in (offset, *shape, *stride)):
        raise ValueError("a tensor has an impossible shape")
    if dtype not in _SIZES:
        return StoredTensor(dtype, odd="a tensor in another format")
    if any(isinstance(one, dict) and one for one in rest):
        return StoredTensor(dtype, odd="a negated or conjugated view that is not computed yet")
    made = StoredTensor(dtype, tuple(shape), tuple(stride), offset, storage)
    if made.span[1] * _SIZES[dtype] > storage.numel * _SIZES[storage.dtype]:
        raise ValueError("a tensor is larger than its storage")
    return made


def _rebuilt(function: Any, _: Any, given: Any, *__: Any) -> Any:
    """A tensor with a class or attributes of its own: the tensor."""
    return _call(function, given)


def _not_dense(kind: str) -> Callable[..., StoredTensor]:
    return lambda *_: StoredTensor("", odd=kind)


def _itself(given: Any = (), *_: Any) -> Any:
    """What a function is given, never a copy: a few bytes of a pickle can ask for any number of copies."""
    return given


_PUSHED = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
_PUSHED |= {"SHORT_BINBYTES", "BINBYTES"}
_MADE: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_MADE |= {"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False}
_STORED = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_TAKEN: dict[str, Callable[[list[Any], list[Any]], None]] = {"TUPLE": _as_tuple, "APPENDS": _append, "SETITEMS": _set}
_CLASSES = {"torch.Tensor", "torch.nn.parameter.Parameter"}
_CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": lambda *_: {},
    "collections.defaultdict": lambda *_: {},
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": _itself,
    "torch._utils._rebuild_parameter_with_state": _itself,
    "torch._tensor._rebuild_from_type_v2": _rebuilt,
    "torch._utils._rebuild_meta_tensor_no_storage": _not_dense("a tensor on the device meta, which has no values"),
    "torch._utils._rebuild_sparse_tensor": _not_dense("a sparse tensor"),
    "torch._utils._rebuild_qtensor": _not_dense("a quantized tensor"),
    "torch._utils._rebuild_nested_tensor": _not_dense("a nested tensor"),
    "torch.serialization._get_layout": _itself,
    "torch.Size": _itself,
    "torch.device": _itself,
    "_codecs.encode": _itself,
    "__builtin__.set": _itself,
    "builtins.set": _itself,
}
