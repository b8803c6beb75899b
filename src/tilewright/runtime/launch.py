"""From the caller's arguments to checked arrays: nothing runs until everything fits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright.ir.bind import (
    checked_scalar,
    in_order,
    shape_of,
    unused_params,
    written_params,
)
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Var
from tilewright.ir.op import Program
from tilewright.runtime.outputs import (
    Shapes,
    delivered,
    empty_like_library,
    maker,
    stored_as,
    torch_dtype,
)
from tilewright.support.errors import LaunchError, entry
from tilewright.targets.arrays import (
    Array,
    ArrayView,
    ProgramCheck,
    library_of,
    sizes_of,
    torch_loaded,
    view_of,
)
from tilewright.targets.torch_tensors import MISSING, generated, passed, write_counter

Args = dict[str, Any]
_KEPT = 1024


@dataclass(frozen=True)
class Call:
    """Checked arguments, and what to do and return once the kernel has run."""

    args: Args
    sizes: dict[Var, int]
    library: str  # the caller's
    views: Mapping[str, ArrayView]
    outputs: tuple[Any, ...] = ()
    after: tuple[Callable[[], None], ...] = ()

    def finish(self) -> Any:
        for action in self.after:
            action()
        made = [delivered(self.library, output) for output in self.outputs]
        return None if not made else made[0] if len(made) == 1 else made


class Launcher:
    """Checks and converts the arguments of one program; made once, used at every call."""

    def __init__(self, program: Program, outputs: Sequence[int] = ()) -> None:
        self.program = program
        self.params = program.params
        self.outputs = tuple(_position(i, len(program.params)) for i in outputs)
        for i in self.outputs:
            if isinstance(self.params[i], Var):
                raise LaunchError(
                    f"out_idx names {self.params[i].name}, which is a scalar",
                    expected="positions of tensor parameters",
                    fix="return a number through a tensor of one element",
                )
        self.written = written_params(program)
        self.unused = unused_params(program)
        self.inputs = tuple(i for i in range(len(self.params)) if i not in self.outputs)
        self.made = tuple(self.params[i].name for i in self.outputs)
        self.dynamic = bool(program.dims)
        self.check = ProgramCheck(program, self.written)

    def prepare(self, given: Sequence[Any], named: Mapping[str, Any] | None = None) -> Call:
        given = self.in_order(given, named or {})
        library = next((found for v in given if (found := library_of(v))), "numpy")
        args: Args = {}
        views: dict[str, ArrayView] = {}
        after: list[Callable[[], None]] = []
        for i, value in zip(self.inputs, given, strict=True):
            param = self.params[i]
            if isinstance(param, Var):
                args[param.name] = checked_scalar(param.name, param.dtype, value)
            elif value is not None or param.name not in self.unused:
                views[param.name] = view_of(value, param.name, host=True)
                if param.name in self.written and library_of(value) == "torch":
                    after.append(partial(write_counter(), value))
        sizes = self.check.sizes(views)
        made: dict[str, Any] = {}
        for i in self.outputs:
            param = self.params[i]
            assert isinstance(param, Buffer)
            made[param.name] = empty_like_library(library, shape_of(param, sizes), param.dtype)
        for tensor in self.program.tensors:
            if tensor.name in made:
                array = view_of(made[tensor.name], tensor.name, host=True).numpy()
            elif tensor.name in views:
                array = views[tensor.name].numpy()
            else:
                array = np.zeros(shape_of(tensor, sizes), tensor.dtype.numpy)
            args[tensor.name] = self._elements(tensor, array, after)
        args = {p.name: args[p.name] for p in self.params}
        return Call(args, sizes, library, views, tuple(made.values()), tuple(after))

    def in_order(self, given: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        return in_order(self.program.name, [self.params[i].name for i in self.inputs], given, named)

    def _elements(self, param: Buffer, array: Array, after: list[Callable[[], None]]) -> Array:
        """As the kernel takes them: packed ones may come as bytes."""
        if array.dtype == param.dtype.numpy:
            return array
        from tilewright.machine.numbers import pack, unpack  # for few kernels: it takes a while

        kind, raw = param.dtype, array.view(np.uint8)
        elements: Array = unpack(raw, kind)
        if param.name in self.written:
            after.append(lambda: np.copyto(raw, pack(elements, kind)))
        return elements


def _position(index: Any, count: int) -> int:
    if not isinstance(index, int):
        raise LaunchError(
            "out_idx must be positions of parameters",
            expected="a number, or a list of numbers",
            got=repr(index)[:60],
            fix="-1 is the last parameter: out_idx=[-1]",
        )
    if not -count <= index < count:
        raise LaunchError(
            f"out_idx {index} is not among {count} parameters",
            expected=f"{-count} … {count - 1}",
            got=str(index),
            fix="-1 is the last parameter",
        )
    return index % count


class OutputMaker:
    """Makes the outputs of calls on a GPU. `caller` is the function that users call, generated for
    a kernel's parameters: of PyTorch's tensors that look like those of a call before, it knows the
    shapes of the outputs, and passes all to `call`, which checks."""

    def __init__(self, launcher: Launcher, call: Callable[..., None], results: Shapes = ()) -> None:
        """`results`: shapes that outputs get in place of those of the kernel."""
        self.launcher, self.call, self.results = launcher, call, results
        self.names = [launcher.params[i].name for i in launcher.inputs]
        self.made = [p for i in launcher.outputs if isinstance(p := launcher.params[i], Buffer)]
        self.strided = any(t.strides is not None for t in launcher.program.tensors)
        # `kinds`: of tensors that are known to be PyTorch's; `known`: shapes of outputs
        self.values: dict[str, Any] = {
            "missing": MISSING, "slow": entry(self.slow), "launch": call, "known": {},
            "kinds": set(),
        }  # fmt: skip

    def caller(self) -> Callable[..., Any]:
        launcher, params = self.launcher, self.launcher.params
        given, made = ([f"x{i}" for i in each] for each in (launcher.inputs, launcher.outputs))
        tensors = [f"x{i}" for i in launcher.inputs if isinstance(params[i], Buffer)]
        facts = ["shape"] * (launcher.dynamic or self.strided) + ["stride()"] * self.strided
        key = "".join(f"{x}.{fact}, " for x in tensors for fact in facts)
        values = "".join(f"{x}, " for x in given)
        like = tensors[0] if tensors else "None"
        makes = (f"{x} = {like}.new_empty(shape_{x}, dtype=kind_{x})" for x in made)
        text = f"""\
def call({"".join(f"{x}=missing, " for x in given)}{"/, " if given else ""}*rest, **named):
    if rest or named or type({like}) not in kinds{f" or {given[-1]} is missing" if given else ""}:
        return slow(({values}*rest,), named)
    try:
        key = ({key})
    except AttributeError:  # not a tensor: the other road says so
        return slow(({values}), {{}})
    found = known.get(key)
    if found is None:
        return slow(({values}), {{}}, key)
    {"".join(f"shape_{x}, " for x in made)} = found
    {"; ".join(makes)}
    launch({", ".join(f"x{i}" for i in range(len(params)))})
    return {made[0] if len(made) == 1 else f"[{', '.join(made)}]"}
"""
        return generated(text, launcher.program.name, self.values)

    def slow(self, given: tuple[Any, ...], named: dict[str, Any], key: Any = None) -> Any:
        streams = {}
        if "stream" not in self.names and "stream" in named:
            streams["stream"] = named.pop("stream")
        values = self.launcher.in_order(passed(given), named)
        like = next((v for v in values if library_of(v) not in ("", "numpy")), None)
        library = library_of(like) or ("torch" if torch_loaded() else "")
        make, shapes = maker(like, library, streams.get("stream")), self.shapes(values)
        outputs = [make(shape, b.dtype) for shape, b in zip(shapes, self.made, strict=True)]
        places = dict(zip(self.launcher.inputs, values, strict=True))
        places.update(zip(self.launcher.outputs, outputs, strict=True))
        self.call(*(places[i] for i in range(len(places))), **streams)
        if library == "torch" and not self.values["kinds"]:
            kinds = zip(self.launcher.outputs, self.made, strict=True)
            self.values |= {f"kind_x{i}": torch_dtype(b.dtype) for i, b in kinds}
            torch = sys.modules["torch"]
            self.values["kinds"] = {torch.Tensor, torch.nn.Parameter}
        if key is not None:
            known = self.values["known"]
            if len(known) >= _KEPT:
                known.clear()
            pairs = zip(shapes, self.made, strict=True)
            known[key] = tuple(stored_as(shape, b.dtype)[0] for shape, b in pairs)
        results = [delivered(library, output) for output in outputs]
        return results[0] if len(results) == 1 else results

    def shapes(self, values: Sequence[Any]) -> list[tuple[int, ...]]:
        """The outputs' shapes, which follow from the inputs'."""
        sizes = self.sizes(values) if self.launcher.dynamic or self.strided else {}
        own = [shape_of(b, sizes) for b in self.made]
        return [a if b is None else b for a, b in zip(own, self.results or own, strict=True)]

    def sizes(self, values: Sequence[Any]) -> Mapping[Var, int]:
        params = [self.launcher.params[i] for i in self.launcher.inputs]
        views = {
            p.name: view_of(value, p.name)
            for p, value in zip(params, values, strict=True)
            if isinstance(p, Buffer) and value is not None
        }
        return sizes_of(self.launcher.program, views)
