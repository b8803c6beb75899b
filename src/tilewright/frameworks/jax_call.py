"""Kernels and formulas inside `jax.jit`: what `tilewright.jax.call` does.

XLA calls a handler of ours by its foreign function interface. Shapes and types are known when a
call is traced: there the contract is checked, and for each set of sizes a handler is compiled that
fills in the addresses of a call and runs the kernel, without Python and without copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from types import FunctionType
from typing import Any

import numpy as np

from tilewright.formula.arguments import is_array
from tilewright.formula.function import MathFunction
from tilewright.formula.gradients.backward import gradients
from tilewright.ir.bind import checked_scalar, shape_of
from tilewright.ir.core import *
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.target import Target
from tilewright.ir.text import print_program
from tilewright.lang.trace import PrimFunc
from tilewright.runtime.direct import Outline
from tilewright.runtime.jit import Jit, Launch, launching
from tilewright.runtime.kernel import CompiledKernel
from tilewright.runtime.outputs import check_jax_type, stored_as
from tilewright.targets.arrays import ArrayView
from tilewright.targets.dlpack import row_major
from tilewright.tune.configs import Autotuned

PLATFORMS = {"cpu": ("cpu", "cpu"), "gpu": ("cuda", "CUDA"), "cuda": ("cuda", "CUDA")}


def call(kernel: Any, /, *arguments: Any, target: Any = None, **named: Any) -> Any:
    """Run a kernel or a formula on JAX's arrays, also inside `jax.jit`.

    `kernel` is a compiled kernel, a `prim_func`, a jitted function that is written directly, a
    formula (`@tw.math`), or a function that calls such jitted functions and formulas; `arguments`
    are what it is called with, and numbers constants of the call. It returns what a call of the
    kernel returns: parameters that it makes. JAX's arrays never change, so parameters that a kernel
    writes in place are returned, too, in their order, as new arrays. `vmap` calls it once for each
    element of the batch. Formulas have their gradients.

    >>> n = T.dynamic("n")
    >>> @T.prim_func
    ... def double(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
    ...     with T.Kernel(T.ceildiv(n, 128)) as bx:
    ...         for i in T.Parallel(128):
    ...             B[bx * 128 + i] = A[bx * 128 + i] * 2
    >>> import jax, tilewright.jax                                             # doctest: +SKIP
    >>> kernel = tw.compile(double, out_idx=[-1])                              # doctest: +SKIP
    >>> jax.jit(lambda x: tilewright.jax.call(kernel, x) + 1)(jax.numpy.ones(3))  # doctest: +SKIP
    Array([3., 3., 3.], dtype=float32)
    """
    kernel = kernel.jitted if isinstance(kernel, Autotuned) else kernel
    kind = _kind(target, arguments, named)
    launch = partial(_launched, kind=kind)
    if isinstance(kernel, MathFunction):
        return _formula(kernel, arguments, named, launch)
    if isinstance(kernel, FunctionType):
        with launching(launch):
            return kernel(*arguments, **named)
    return launch(kernel, arguments, named)


def _launched(kernel: Any, arguments: Sequence[Any], named: Mapping[str, Any], kind: str) -> Any:
    if isinstance(kernel, Jit):
        if not kernel.direct:
            raise CompileError(
                f"{kernel.fn.__name__} makes kernels: call it first",
                expected="a kernel",
                got=repr(kernel),
                fix=f"pass what it returns: {kernel.fn.__name__}(…), compiled for this size",
                code="arguments",
            )
        own = kernel if kernel.compile_target.kind == kind else kernel.on(kind)
        bound = own.calls.bind(tuple(arguments), named)
        known = own.calls.known({n: _outline(v) for n, v in bound.items()})
        given = [bound[name] for name in known.arguments]
        return _run(known.kernel, given, kind)
    if isinstance(kernel, PrimFunc):
        kernel = CompiledKernel(kernel.program, target=kind, out_idx=kernel.out_idx)
    if not isinstance(kernel, CompiledKernel):
        raise CompileError(
            "tilewright.jax.call takes a kernel",
            expected="a compiled kernel, a prim_func, a @tw.jit kernel, a formula or a function",
            got=type(kernel).__name__,
            fix="compile it first: tw.compile(prim_func)",
            code="arguments",
        )
    if kernel.target.kind != kind:
        kernel = _elsewhere(kernel, kind)
    return _run(kernel, kernel.launcher.in_order(arguments, named), kind)


def _outline(value: Any) -> Any:
    """An array as far as a kernel's text depends on it."""
    if is_array(value):
        return Outline(tuple(map(int, value.shape)), str(value.dtype))
    return value


_others: dict[tuple[int, str], tuple[CompiledKernel, CompiledKernel]] = {}


def _elsewhere(kernel: CompiledKernel, kind: str) -> CompiledKernel:
    """A kernel for any target, compiled for JAX's."""
    if not kernel.follows_arrays:
        raise LaunchError(
            f"{kernel.name} is compiled for {kernel.target}, and JAX runs on {kind}",
            expected=f"a kernel for {kind}",
            got=str(kernel.target),
            fix='compile it with target="auto", or put the arrays where it runs: jax.device_put',
        )
    found = _others.get((id(kernel), kind))
    if found is None:
        outputs = kernel.launcher.outputs
        other = CompiledKernel(kernel.program, target=kind, out_idx=outputs, options=kernel.options)
        found = _others[id(kernel), kind] = kernel, other
    return found[1]


def _kind(target: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> str:
    """The kind of target that JAX is going to run the call on."""
    import jax

    if target is not None:
        return Target.parse(target).kind
    leaves = jax.tree.leaves((tuple(arguments), dict(named)))
    there = {
        d.platform
        for x in leaves
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
        for d in x.devices()
    }
    default: Any = jax.config.jax_default_device
    platform = next(iter(there), None) or str(getattr(default, "platform", default or ""))
    platform = platform or jax.default_backend()
    if len(there) > 1 or platform not in PLATFORMS:
        raise LaunchError(
            "kernels run where JAX's arrays are: on the CPU or a CUDA GPU",
            expected=" or ".join(PLATFORMS),
            got=", ".join(sorted(there)) or str(platform),
            fix="jax.device_put all arguments on one device",
        )
    return PLATFORMS[platform][0]


# ── one call ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Traced:
    """A handler for known shapes. `aliases` says which argument the memory of a result is."""

    name: str
    results: tuple[Any, ...]
    aliases: Mapping[int, int]
    shown: int  # results that the caller sees; scratch follows
    handler: Any


_known: dict[Any, Traced] = {}


def _run(kernel: CompiledKernel, given: Sequence[Any], kind: str) -> Any:
    import jax
    import jax.numpy as jnp

    launcher = kernel.launcher
    names = [launcher.params[i].name for i in launcher.inputs]
    values = dict(zip(names, given, strict=True))
    arrays: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for p in launcher.params:
        if p.name not in values:
            continue
        if isinstance(p, Var):
            attributes[f"a{len(attributes):03}"] = _bits(p, values[p.name])
        elif values[p.name] is not None or p.name not in launcher.unused:
            arrays[p.name] = _array(p.name, values[p.name])
    integers = {p.name: int(values[p.name]) for p in launcher.program.scalars if p.dtype.is_int}
    looks = tuple((name, x.shape, str(x.dtype)) for name, x in arrays.items())
    # grids may depend on integers; on a GPU they are part of the handler
    key = (launcher.program, launcher.outputs, str(kernel.target), looks,
           tuple(integers.items()) if kind == "cuda" else ())  # fmt: skip
    traced = _known.get(key)
    if traced is None:
        traced = _known[key] = _trace(kernel, arrays, integers, len(attributes), key)
    results = jax.ffi.ffi_call(
        traced.name,
        [jax.ShapeDtypeStruct(s, d) for s, d in traced.results],
        vmap_method="sequential",
        input_output_aliases=dict(traced.aliases),
    )(*[jnp.asarray(x) for x in arrays.values()], **attributes)
    seen = results[: traced.shown]
    return None if not seen else seen[0] if len(seen) == 1 else list(seen)


def _bits(p: Var, value: Any) -> Any:
    """A scalar as the 64 bits of an attribute."""
    import jax

    if isinstance(value, jax.core.Tracer) or np.ndim(value):
        raise LaunchError(
            f"{p.name} must be a number that is known when JAX traces",
            expected=f"a Python number of type {p.dtype}",
            got=f"{type(value).__name__} of {getattr(value, 'aval', 'an array')}",
            fix=f"mark it static (static_argnums), or declare {p.name} as a tensor of one element",
        )
    raw = np.asarray(checked_scalar(p.name, p.dtype, value)).tobytes()
    return np.int64(int.from_bytes(raw.ljust(8, b"\0"), "little", signed=True))


def _array(name: str, value: Any) -> Any:
    if not is_array(value):
        raise LaunchError(
            f"{name} must be an array",
            expected="a JAX or NumPy array",
            got=type(value).__name__,
            fix="jnp.asarray(x)",
        )
    return value


def _trace(
    kernel: CompiledKernel,
    arrays: Mapping[str, Any],
    integers: Mapping[str, int],
    scalar_count: int,
    key: Any,
) -> Traced:
    """Check the contract and compile the handler."""
    from jax.ffi import pycapsule, register_ffi_target

    launcher, program = kernel.launcher, kernel.program
    sizes = launcher.check.sizes(_views(arrays))
    by_name = {t.name: t for t in program.tensors}
    made = [by_name[launcher.params[i].name] for i in launcher.outputs]
    changed = [t for t in program.tensors if t.name in arrays and t.name in launcher.written]
    results: list[tuple[Any, Any]] = []
    tensors: dict[str, tuple[str, int]] = {n: ("args", i) for i, n in enumerate(arrays)}
    aliases: dict[int, int] = {}
    for t in (*made, *changed):  # as the kernel returns them
        if t.name in arrays:
            aliases[tensors[t.name][1]] = len(results)
            shape, stored = tuple(arrays[t.name].shape), str(arrays[t.name].dtype)
        else:
            shape, stored = stored_as(shape_of(t, sizes), t.dtype)
        tensors[t.name] = "results", len(results)
        check_jax_type(find_dtype(stored))
        results.append((shape, find_dtype(stored).numpy))
    shown = len(results)
    if not shown:
        raise LaunchError(
            f"{kernel.name} writes nothing that JAX could see",
            expected="a parameter that is written or made",
            fix="return a result",
        )
    code: Any = kernel.executable
    build = _cpu if kernel.target.kind == "cpu" else _cuda
    handler = build(code, program, arrays, sizes, integers, tensors, results, scalar_count)
    # of the content alone: JAX keeps executables between processes under the names in them
    content = repr((print_program(program), *key[1:]))
    name = f"tilewright_{kernel.name}_{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    platform = dict(PLATFORMS.values())[kernel.target.kind]
    register_ffi_target(name, pycapsule(_function(handler)), platform=platform)
    return Traced(name, tuple(results), aliases, shown, (handler, kernel))


def _function(handler: Any) -> Any:
    import ctypes

    return ctypes.cast(handler.address("tw.handler"), ctypes.CFUNCTYPE(ctypes.c_void_p))


def _views(arrays: Mapping[str, Any]) -> dict[str, ArrayView]:
    """The arrays as the checks see them: no two of XLA's buffers overlap, and all are aligned."""
    views, at = {}, 4096
    for name, x in arrays.items():
        kind, shape = find_dtype(x.dtype), tuple(map(int, x.shape))
        views[name] = ArrayView(at, shape, row_major(shape), kind, 0)
        at += (prod(shape) * kind.numpy.itemsize // 4096 + 1) * 4096
    return views


def _cpu(
    code: Any, program: Program, arrays: Any, sizes: Mapping[Var, int], integers: Any,
    tensors: dict[str, tuple[str, int]], results: list[Any], scalar_count: int,
) -> Any:  # fmt: skip
    from tilewright.frameworks.jax_cpu import compiled

    if code.code.watches or any(t.dtype.packed for t in program.tensors):
        raise CompileError(
            f"{program.name} cannot be called inside JAX on the CPU",
            expected="no T.print, no T.device_assert, elements of whole bytes",
            got="a kernel that prints or asserts" if code.code.watches else "elements of some bits",
            fix="call the kernel itself, outside of jax.jit",
            code="jax",
        )
    _scratch(code.code.scratch, sizes, tensors, results)
    counts = len(arrays), len(results), scalar_count
    scalars = [s.name for s in program.scalars]
    return compiled(code, tensors, scalars, counts, sizes)


def _cuda(
    code: Any, program: Program, arrays: Any, sizes: Mapping[Var, int],
    integers: Mapping[str, int], tensors: dict[str, tuple[str, int]], results: list[Any],
    scalar_count: int,
) -> Any:  # fmt: skip
    from tilewright.frameworks.jax_cuda import compiled
    from tilewright.targets.cuda.launch import Form
    from tilewright.targets.cuda.tensormap import SM_COUNT

    general = code.otherwise or code
    chosen, named = general, {var.name: value for var, value in sizes.items()}
    if code.otherwise and Form(code.module, *code.takes()).takes(_views(arrays), named):
        chosen = code
    _scratch(chosen.record.scratch, sizes, tensors, results)
    align = {**general.record.align, **(chosen.takes()[1] if chosen is not general else {})}
    units = {t.name: max(t.dtype.bits // 8, align.get(t.name, 1)) for t in program.tensors}
    shapes = {t.name: shape_of(t, sizes) for t in (*program.tensors, *chosen.record.scratch)}
    module = chosen.module
    return compiled(
        module, units, tensors, shapes, [s.name for s in program.scalars],
        (len(arrays), len(results), scalar_count),
        {**named, **integers, SM_COUNT: module.driver.device(0).sms}, program.name,
    )  # fmt: skip


def _scratch(
    scratch: Sequence[Buffer], sizes: Mapping[Var, int], tensors: dict[str, tuple[str, int]],
    results: list[Any],
) -> None:  # fmt: skip
    """Memory for a call is a result that nobody looks at: XLA finds a place for it."""
    for b in scratch:
        tensors[b.name] = "results", len(results)
        results.append(((max(b.dtype.storage_bytes(prod(shape_of(b, sizes))), 1),), np.uint8))


# ── formulas ─────────────────────────────────────────────────────────────────────────────────

_gradients = lru_cache(256)(gradients)  # deriving them takes longer than most traces


def _formula(
    function: MathFunction, arguments: Sequence[Any], named: Mapping[str, Any], launch: Launch
) -> Any:
    """A formula with its gradients as JAX has them."""
    import jax

    leaves, tree = jax.tree.flatten((tuple(arguments), dict(named)))
    places = [i for i, x in enumerate(leaves) if is_array(x)]
    pairs: list[Any] = []

    def filled(body: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """What `body` gives of the arguments with these arrays, its kernels called by JAX."""
        found = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            found[place] = array
        args, kwargs = jax.tree.unflatten(tree, found)
        with launching(launch):
            return body(*args, **kwargs)

    run = jax.custom_vjp(lambda *arrays: filled(function, arrays))

    def forward(*arrays: Any) -> Any:
        def both(*args: Any, **kwargs: Any) -> Any:
            pair, found = _gradients(function).pair(*args, **kwargs)
            outputs, kept = pair.forward(found)
            made = function.made_for(*args, **kwargs)
            left = dict(enumerate(arrays))  # one may be given twice
            given: dict[str, int] = {}
            for b, x in zip(pair.values.formula.inputs, found, strict=True):
                given[b.name] = next(i for i, a in left.items() if a is x)
                del left[given[b.name]]
            pairs.append((pair, made, [given[name] for name in pair.wrt]))
            several = [*outputs] if pair.count > 1 else [outputs]
            return made.returned(several), kept.arrays

        return filled(both, arrays)

    def backward(kept: Any, cotangent: Any) -> Any:
        pair, made, chosen = pairs[-1]
        order = jax.tree.leaves(made.returned(list(range(pair.count))))
        given = dict(zip(order, jax.tree.leaves(cotangent), strict=True))
        wanted = [given[i] for i, b in enumerate(made.formula.outputs) if b.dtype.is_float]
        with launching(launch):
            found = _several(pair.backward(kept, wanted))
        slopes: list[Any] = [None] * len(places)
        for place, slope in zip(chosen, found, strict=True):
            slopes[place] = slope
        return tuple(slopes)

    run.defvjp(forward, backward)
    return run(*[leaves[i] for i in places])


def _several(found: Any) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)
