"""A kernel's contract and recipes as tables in C++, and as a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.bind import solve, unused_params, written_params
from tilewright.ir.core import *
from tilewright.runtime.outputs import stored_as
from tilewright.targets.cuda.launch import (
    LaunchSpec,
    Param,
    Scalar,
    Size,
    TensorPointer,
    block_layout,
)
from tilewright.targets.cuda.launch import Map as MapArg
from tilewright.targets.cuda.tensormap import ELEMENT_TYPES, SWIZZLES, TensorMapSpec
from tilewright.targets.entries import Json
from tilewright.tools.export.expressions import as_number, written

MAX_RANK = 8
MAX_TENSORS = 64
MAX_VALUES = 60  # besides what a machine adds
_C_TYPES = {"float32": "float", "float64": "double", "uint64": "uint64_t", "bool": "bool"}
NO_PLACE = 10007  # any number that cancels nothing


@dataclass
class Table:
    """C++ definitions in order, each under a name of its own."""

    prefix: str
    lines: list[str] = field(default_factory=list)

    def array(self, type_: str, hint: str, items: Iterable[str]) -> str:
        """The name of a constant array; a null pointer where it is empty."""
        listed = list(items)
        if not listed:
            return "nullptr"
        name = f"{self.prefix}_{hint}_{len(self.lines)}"
        self.lines.append(f"const {type_} {name}[] = {{\n    " + ",\n    ".join(listed) + "};")
        return name

    def numbers(self, hint: str, values: Iterable[Any], places: Mapping[str, int]) -> str:
        return self.array("Number", hint, (as_number(v, places) for v in values))


def quoted(text: str) -> str:
    """`text` as a string of C, in bytes that any compiler reads."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"'
        + "".join(
            c if " " <= c <= "~" else "".join(f"\\{b:03o}" for b in c.encode()) for c in escaped
        )
        + '"'
    )


def c_type(dtype: DType) -> str:
    """The type of a scalar argument: integers as the widest, so that no call cuts one off; floats
    that C lacks as their bits."""
    if dtype.name in _C_TYPES:
        return _C_TYPES[dtype.name]
    return "int64_t" if dtype.is_int else f"uint{dtype.bits}_t"


def per_item(dtype: DType) -> int:
    """Elements in what an array has as one."""
    return 8 // dtype.bits if dtype.packed else 1


class Contract:
    """What a program's callers must keep."""

    def __init__(self, name: str, program: Program) -> None:
        self.name, self.program = name, program
        self.unused, self.written = unused_params(program), written_params(program)
        values = [*(d.var.name for d in program.dims), *(s.name for s in program.scalars)]
        self.places = {value: i for i, value in enumerate(values)}
        for tensor in program.tensors:
            if tensor.rank > MAX_RANK or (tensor.dtype.packed and 8 % tensor.dtype.bits):
                raise CompileError(
                    f"{tensor.name} of {program.name} cannot be passed to an exported kernel",
                    expected=f"at most {MAX_RANK} dimensions, of types that fill bytes",
                    got=declared(tensor),
                    fix="merge dimensions, or pass the bytes as uint8",
                    code="export",
                )
        if len(program.tensors) > MAX_TENSORS or len(values) > MAX_VALUES:
            raise CompileError(
                f"{program.name} has too many parameters for an exported kernel",
                expected=f"at most {MAX_TENSORS} tensors, {MAX_VALUES} sizes and scalars",
                got=f"{len(program.tensors)} tensors, {len(values)} sizes and scalars",
                code="export",
            )

    def tensor(self, name: str, scratch: Sequence[Buffer] = ()) -> int:
        """The place of a tensor in tables: arguments, then scratch."""
        return [t.name for t in (*self.program.tensors, *scratch)].index(name)

    def table(self, to: Table) -> str:
        """The initializer of a `Contract`."""
        program, places = self.program, self.places
        tensors, scalars, dims, bindings = [], [], [], []
        for t in program.tensors:
            kind, strides = stored_as((1,), t.dtype)[1], "nullptr"
            if t.strides is not None:
                strides = to.numbers("strides", t.strides, places)
            tensors.append(
                f"{{{quoted(t.name)}, TW_{kind.upper()}, {per_item(t.dtype)}, "
                f"{t.rank}, {to.numbers('shape', t.shape, places)}, {strides}, "
                f"{quoted(declared(t))}, {_c(t.name in self.written)}, "
                f"{_c(t.name in self.unused)}}}"
            )
        for s in program.scalars:
            low, high = (s.dtype.min_value, s.dtype.max_value) if s.dtype.is_int else (0, 0)
            wide = s.dtype.name == "uint64"
            ends = [f"INT64_C({n})" if n > -(2**63) else "INT64_MIN" for n in (low, high)]
            scalars.append(
                f"{{{quoted(s.name)}, {quoted(s.dtype.name)}, "
                f"{'0, 0' if wide else ', '.join(ends)}, {_c(s.dtype.is_int)}, {_c(wide)}}}"
            )
        for d in program.dims:
            dims.append(f"{{{quoted(d.var.name)}, {d.min}, {d.most}, {d.multiple_of}}}")
        for i, t in enumerate(program.tensors):
            for stride, sizes in ((False, t.shape), (True, t.strides or ())):
                for axis, size in enumerate(sizes):
                    bindings += self._binding(to, i, axis, stride, size)
        parts = [
            to.array("Tensor", "tensors", tensors), len(tensors),
            to.array("Scalar", "scalars", scalars), len(scalars),
            to.array("Dim", "dims", dims), len(dims),
            to.array("Binding", "bindings", bindings), len(bindings),
        ]  # fmt: skip
        return f"{{{quoted(self.name)}, {', '.join(map(str, parts))}}}"

    def _binding(self, to: Table, i: int, axis: int, stride: bool, size: Expr) -> list[str]:
        sizes = {d.var for d in self.program.dims}
        used = [d.var for d in self.program.dims if d.var in variables(size)]
        if not used:
            return []
        if isinstance(size, Var):
            return [f"{{{i}, {axis}, {_c(stride)}, {self.places[size.name]}, nullptr, nullptr}}"]
        known = dict.fromkeys(sizes, NO_PLACE)
        able = [v for v in used if solve(size, {k: n for k, n in known.items() if k is not v})]
        lists = [
            to.array("int", hint, [*(str(self.places[v.name]) for v in found), "-1"])
            for hint, found in (("used", used), ("solvable", able))
        ]
        return [f"{{{i}, {axis}, {_c(stride)}, -1, {', '.join(lists)}}}"]

    def manifest(self) -> Json:
        params: list[Json] = []
        for p in self.program.params:
            if isinstance(p, Var):
                params.append({"name": p.name, "kind": "scalar", "dtype": p.dtype.name,
                               "c_type": c_type(p.dtype)})  # fmt: skip
                continue
            params.append(
                {
                    "name": p.name,
                    "kind": "tensor",
                    "dtype": p.dtype.name,
                    "shape": [plain(size) for size in p.shape],
                    "strides": None if p.strides is None else [plain(s) for s in p.strides],
                    "written": p.name in self.written,
                    "optional": p.name in self.unused,
                }
            )
        sizes = [
            {"name": d.var.name, "min": d.min, "max": d.max, "multiple_of": d.multiple_of}
            for d in self.program.dims
        ]
        return {"parameters": params, "sizes": sizes}


def plain(value: Any) -> Json:
    """A size in a manifest: a number, or an expression as text."""
    if isinstance(value, Const):
        return int(value.value)
    return value if isinstance(value, int) else str(value)


def declared(t: Buffer) -> str:
    """`float32[n, 8]`, and its strides where it has some."""
    text = f"{t.dtype.name}[{', '.join(map(str, t.shape))}]"
    return text + (f" strides ({', '.join(map(str, t.strides))})" if t.strides is not None else "")


def scratch_table(contract: Contract, to: Table, scratch: Sequence[Buffer]) -> str:
    rows = []
    for b in scratch:
        total: Expr = const(1, INT64)
        for size in b.shape:
            total = total * size.astype(INT64)
        bits = b.dtype.bits
        rows.append(
            f"{{{as_number(total, contract.places)}, "
            f"{to.numbers('scratch', b.shape, contract.places)}, {b.rank}, {bits}}}"
        )
    return to.array("Scratch", "scratches", rows)


# ── CUDA ─────────────────────────────────────────────────────────────────────────────────────


class Launches:
    """The launches of one form: as tables and as a manifest, both of the same specs."""

    def __init__(self, contract: Contract, specs: Sequence[LaunchSpec], scratch: Sequence[Buffer]):
        self.contract, self.specs, self.scratch = contract, specs, scratch

    def table(self, to: Table) -> str:
        return to.array("Launch", "launches", (self._launch(to, spec) for spec in self.specs))

    def _launch(self, to: Table, spec: LaunchSpec) -> str:
        offsets, total = block_layout(spec.params)
        params = to.array(
            "Param",
            "params",
            (self._param(to, p, at) for p, at in zip(spec.params, offsets, strict=True)),
        )
        numbers = [as_number(v, self.contract.places) for v in spec.grid]
        grid = ", ".join(numbers + ["nullptr"] * (3 - len(numbers)))
        cluster = ", ".join(map(str, (*spec.cluster, 1, 1)[:3]))
        return (
            f"{{{quoted(spec.kernel)}, {{{grid}}}, {spec.threads}, {{{cluster}}}, {spec.shared}, "
            f"{_c(spec.programmatic)}, {params}, {len(offsets)}, {total}}}"
        )

    def _param(self, to: Table, p: Param, at: int) -> str:
        none = "0, 0, nullptr, nullptr"
        match p:
            case TensorPointer(name):
                place = self.contract.tensor(name, self.scratch)
                return f"{{Param::POINTER, {place}, {at}, {p.bytes}, {none}}}"
            case Scalar(name):
                place = [s.name for s in self.contract.program.scalars].index(name)
                return f"{{Param::SCALAR, {place}, {at}, {p.bytes}, {none}}}"
            case Size(value, dtype):
                ends = f"INT64_C({int(dtype.min_value) + 1}) - 1, INT64_C({int(dtype.max_value)})"
                size = as_number(value, self.contract.places)
                return f"{{Param::SIZE, 0, {at}, {p.bytes}, {ends}, {size}, nullptr}}"
            case MapArg(spec):
                found = to.array("TensorMap", "map", [self._map(to, spec)])
                return f"{{Param::MAP, 0, {at}, {p.bytes}, 0, 0, nullptr, {found}}}"

    def _map(self, to: Table, spec: TensorMapSpec) -> str:
        parts = [
            "nullptr" if of is None else to.numbers(hint, of, self.contract.places)
            for hint, of in (("map_shape", spec.shape), ("map_strides", spec.strides))
        ]
        return (
            f"{{{self.contract.tensor(spec.tensor, self.scratch)}, "
            f"CUtensorMapDataType({ELEMENT_TYPES[spec.dtype.name]}), {spec.dtype.bytes}, "
            f"{spec.rank}, {{{', '.join(map(str, spec.box))}}}, "
            f"CUtensorMapSwizzle({SWIZZLES[spec.swizzle]}), {', '.join(parts)}}}"
        )

    def manifest(self) -> Json:
        return [
            {
                "kernel": spec.kernel,
                "grid": [plain(v) for v in spec.grid],
                "threads": spec.threads,
                "cluster": [*spec.cluster],
                "shared_bytes": spec.shared,
                "programmatic": spec.programmatic,
                "parameters": [_told(p) for p in spec.params],
            }
            for spec in self.specs
        ]


def _told(p: Param) -> Json:
    match p:
        case TensorPointer(name):
            return {"pointer": name}
        case Scalar(name, dtype):
            return {"scalar": name, "dtype": dtype.name}
        case Size(value, dtype):
            return {"size": plain(value), "dtype": dtype.name}
        case MapArg(spec):
            return {
                "tensor_map": spec.tensor,
                "dtype": spec.dtype.name,
                "box": [*spec.box],
                "swizzle": spec.swizzle,
                "shape": None if spec.shape is None else [plain(v) for v in spec.shape],
                "strides": None if spec.strides is None else [plain(v) for v in spec.strides],
            }


def _c(value: bool) -> str:
    return "true" if value else "false"


__all__ = ["Contract", "Launches", "Table", "c_type", "declared", "plain", "quoted",
           "scratch_table", "written"]  # fmt: skip
