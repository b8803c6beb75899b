"""Kernels as operators of PyTorch: what `kernel.as_torch_op` does.

An operator is known to PyTorch by a schema, an implementation and a function that says which
tensors come out without computing them. All three follow from the program: parameters the kernel
writes are declared as mutated, and the shapes of those it makes are expressions over the sizes of
those it is given, so that `torch.compile` can leave sizes open.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.bind import check_rank, solve, unused_params, written_params
from tilewright.ir.core import *
from tilewright.runtime.launch import Launcher
from tilewright.runtime.outputs import HostArray, stored_as, torch_dtype

_SCALARS = {"float": "float", "int": "SymInt", "uint": "SymInt", "bool": "bool"}


@dataclass(frozen=True)
class Form:
    """How a program is called: which parameters are given, which are made and returned."""

    program: Program
    given: tuple[str, ...]
    made: tuple[str, ...]

    def schema(self) -> str:
        """As PyTorch writes it: `(Tensor A, Tensor(a1!) B, float s) -> ()`."""
        params = {p.name: p for p in self.program.params}
        written, unused = written_params(self.program), unused_params(self.program)
        words = []
        for i, name in enumerate(self.given):
            param = params[name]
            if isinstance(param, Var):
                words.append(f"{_SCALARS[param.dtype.kind]} {name}")
            elif name in written:
                words.append(f"Tensor(a{i}!) {name}")
            else:
                words.append(f"Tensor{'?' if name in unused else ''} {name}")
        result = ", ".join(["Tensor"] * len(self.made))
        return f"({', '.join(words)}) -> {result if len(self.made) == 1 else f'({result})'}"

    @property
    def mutated(self) -> tuple[str, ...]:
        written = written_params(self.program)
        return tuple(name for name in self.given if name in written)

    def sizes(self, args: Sequence[Any]) -> dict[Var, Any]:
        """The program's sizes from tensors that may be fake, sizes that may be symbols."""
        dims = {d.var for d in self.program.dims}
        values = dict(zip(self.given, args, strict=True))
        found: dict[Var, Any] = {}
        tensors = [t for t in self.program.tensors if values.get(t.name) is not None]
        for tensor in tensors:
            shape = tuple(values[tensor.name].shape)
            check_rank(tensor, shape)
            if tensor.dtype.packed:
                shape = (*shape[:-1], shape[-1] * (8 // tensor.dtype.bits))
            for size, came in zip(tensor.shape, shape, strict=True):
                line = None if isinstance(size, Const) else solve(size, {})
                if line is not None and line[0] in dims:
                    var, step, offset = line
                    found.setdefault(var, came if size is var else (came - offset) // step)
        for tensor in tensors:
            for size, came in zip(tensor.strides or (), values[tensor.name].stride(), strict=False):
                if size in dims and isinstance(size, Var):
                    found.setdefault(size, came)
        return found

    def fake(self, args: Sequence[Any], device: Any) -> Any:
        """Tensors of the shapes and types that the kernel makes, on the device of the given."""
        import torch

        sizes = self.sizes(args)
        tensors = {t.name: t for t in self.program.tensors}
        made = []
        for name in self.made:
            shape = tuple(_evaluate(size, sizes) for size in tensors[name].shape)
            shape, _ = stored_as(shape, tensors[name].dtype)
            made.append(torch.empty(shape, dtype=torch_dtype(tensors[name].dtype), device=device))
        return None if not made else made[0] if len(made) == 1 else tuple(made)


def form_of(launcher: Launcher) -> Form:
    def names(indices: Sequence[int]) -> tuple[str, ...]:
        return tuple(launcher.params[i].name for i in indices)

    return Form(launcher.program, names(launcher.inputs), names(launcher.outputs))


def define(
    name: str,
    form: Form,
    run: Callable[..., Any],
    *,
    device: str,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    form_for: Callable[[Sequence[Any]], Form] | None = None,
) -> Any:
    """The operator `name`, whose calls `run` serves. `form` gives its schema; where shapes decide
    what is traced, `form_for(args)` is the form of a call. Without tensors among the arguments it
    makes its own on `device`."""
    library = _library()
    name = _qualified(name)
    _check_formula(form, backward, setup_context)

    def implementation(*args: Any) -> Any:
        made = run(*args)
        return tuple(map(_tensor, made)) if isinstance(made, list) else _tensor(made)

    def fake(*args: Any) -> Any:
        where = next((a.device for a in args if hasattr(a, "device")), device)
        return (form_for(args) if form_for else form).fake(args, where)

    op = library.custom_op(name, implementation, mutates_args=form.mutated, schema=form.schema())
    op.register_fake(fake)
    if backward is not None:
        op.register_autograd(backward, setup_context=setup_context)
    return op


def _tensor(made: Any) -> Any:
    """A kernel that is given no tensor makes NumPy's arrays."""
    if not isinstance(made, np.ndarray):
        return made
    import torch

    return torch.from_dlpack(HostArray(made))


def _library() -> Any:
    try:
        import torch.library as library
    except ImportError:
        library = None
    if not hasattr(library, "custom_op"):
        raise CompileError(
            "as_torch_op needs PyTorch 2.4 or newer",
            got="no PyTorch" if library is None else "an older one",
            fix="pip install torch",
        )
    return library


def _qualified(name: str) -> str:
    """`library::op`; Tilewright's own library where none is named."""
    parts = name.split("::")
    if len(parts) > 2 or not all(part.isidentifier() for part in parts):
        raise CompileError(
            f"{name!r} is no name for an operator of PyTorch",
            expected='"library::name", or a plain name',
            got=repr(name),
            fix='write it like "mylib::softmax"',
        )
    return name if len(parts) == 2 else f"tilewright::{name}"


def _check_formula(form: Form, backward: Any, setup_context: Any) -> None:
    if setup_context is not None and backward is None:
        raise CompileError(
            "setup_context= saves what backward= needs, and there is no backward=",
            fix="pass both, or neither",
        )
    if backward is not None and form.mutated:
        raise CompileError(
            f"{form.program.name} writes {form.mutated[0]} in place, which PyTorch cannot derive",
            expected="a kernel that makes its outputs",
            got=f"parameters that are written: {', '.join(form.mutated)}",
            fix="let it make them: tw.compile(…, out_idx=[…]), or T.empty in a @tw.jit function",
        )


def _evaluate(size: Expr, sizes: Mapping[Var, Any]) -> Any:
    import torch

    operators: dict[str, Callable[[Any, Any], Any]] = {
        "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
        "%": operator.mod, "min": torch.sym_min, "max": torch.sym_max,
    }  # fmt: skip
    match size:
        case Const():
            return int(size.value)
        case Var() if size in sizes:
            return sizes[size]
        case Bin() if size.op in operators:
            return operators[size.op](_evaluate(size.a, sizes), _evaluate(size.b, sizes))
        case Cast():
            return _evaluate(size.a, sizes)
    raise LaunchError(
        f"the size {size} of an output does not follow from the arguments' shapes",
        expected="sums, products and quotients of sizes",
        got=str(size),
        fix="declare the output with a simpler shape, or pass it as an argument",
    )
