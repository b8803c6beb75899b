"""Ops as operators of PyTorch, for tensors: `torch.ops.tilewright_ops.softmax` and its kin.

Importing this file defines three operators for each op: the op, `…_forward`, which also gives what
gradients need, and `…_backward`. Calls go to the second where a gradient is recorded. Shapes and
types of results follow from the op's signature, so that `torch.compile` computes none of them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tilewright.formula.gradients.backward import Pair
from tilewright.ir.dtype import dtype
from tilewright.ops.pullback import Recomputed
from tilewright.ops.record import OPS, Record
from tilewright.runtime.outputs import torch_dtype
from tilewright.support.content_key import content_key
from tilewright.support.errors import CompileError

Given: TypeAlias = "dict[str, Any]"
SPACE = "tilewright_ops"
_TYPES = {
    "int": "SymInt", "tuple[int, ...]": "SymInt[]", "tuple[int, int]": "SymInt[2]",
    "float": "float", "bool": "bool", "str": "str", "Function": "str",
}  # fmt: skip
_PLAIN: dict[str, Any] = {}
_FORWARD: dict[str, Any] = {}
_BACKWARD: dict[str, Any] = {}
_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_WORDS: dict[Any, str] = {}


def call(op: Record, given: Given) -> Any:
    """The op of tensors, with a record for autograd where that is on."""
    values = _values(op, given)
    wrt = []
    if torch.is_grad_enabled():
        wrt = [n for n in op.wrt if given[n] is not None and given[n].requires_grad]
    if not wrt:
        return _PLAIN[op.name](*values)
    found = _FORWARD[op.name](*values, ",".join(wrt))
    count = len(op.signature.made)
    return found[0] if count == 1 else tuple(found[:count])


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _word(function: Callable[..., Any]) -> str:
    """A word for a function of the user's: operators take none."""
    key = content_key(function)
    word = _WORDS.setdefault(key, f"function {len(_WORDS)}")
    _FUNCTIONS[word] = function
    return word


def _arguments(op: Record) -> tuple[list[str], list[str]]:
    """The op's arguments as PyTorch declares them, `SymInt dim`; and with defaults."""
    plain, full = [], []
    for name, parameter in op.__signature__.parameters.items():
        kind, _, optional = _annotation(parameter).partition(" | ")
        value = op.defaults.get(name)
        is_array = name in op.signature.arrays
        if not is_array and kind not in _TYPES:
            raise CompileError(
                f"{op.name}: operators of PyTorch take no {kind or 'unknown type'} like {name}",
                expected=f"an array of the signature, or one of {', '.join(_TYPES)}",
                fix="annotate it with one of these",
            )
        word = "Tensor" if is_array else _TYPES[kind]
        word += "?" if optional or (is_array and name in op.defaults) else ""
        plain.append(f"{word} {name}")
        text = json.dumps(value) if isinstance(value, (str, tuple)) else str(value)
        full.append(f"{plain[-1]}={text}" if name in op.defaults else plain[-1])
    return plain, full


def _annotation(parameter: inspect.Parameter) -> str:
    found = parameter.annotation
    return found if isinstance(found, str) else getattr(found, "__name__", str(found))


def _given(op: Record, values: Sequence[Any]) -> Given:
    """Arguments by name; PyTorch leaves out those at the end that are defaults."""
    given = {**op.defaults, **dict(zip(op.names, values, strict=False))}
    for name, value in given.items():
        if isinstance(value, (list, tuple)):
            given[name] = tuple(value)
        elif isinstance(value, str) and value in _FUNCTIONS:
            given[name] = _FUNCTIONS[value]
    return {n: given[n] for n in op.names}


def _values(op: Record, given: Given) -> list[Any]:
    """Arguments in their order, as operators take them."""
    return [_word(v) if callable(v) else v for v in map(given.__getitem__, op.names)]


def _pair(op: Record, given: Given, wrt: str) -> tuple[Pair | Recomputed, list[Any]]:
    """The formulas for arguments like these, whose sizes are numbers from here on."""
    numbers = {n: _number(v) for n, v in given.items()}
    found: tuple[Pair | Recomputed, list[Any]] = op.gradients(tuple(wrt.split(","))).pair(**numbers)
    return found


def _number(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_number, value))
    return int(value) if isinstance(value, torch.SymInt) else value


def _empty(like: Given, op: Record, shape: Sequence[Any], kind: Any) -> Any:
    device = next(like[n] for n in op.signature.arrays if like[n] is not None).device
    return torch.empty(shape, dtype=torch_dtype(dtype(kind)), device=device)


def define(op: Record) -> None:
    """The operators of an op."""
    count, arguments = len(op.signature.made), ", ".join(_arguments(op)[1])

    def run(*values: Any) -> Any:
        given = _given(op, values)
        op.check(given)
        return op.run(**given)

    def shapes(*values: Any) -> Any:
        given = _given(op, values)
        made = [_empty(given, op, *each) for each in op.results(given)]
        return made[0] if count == 1 else tuple(made)

    result = ", ".join(["Tensor"] * count)
    result = result if count == 1 else f"({result})"
    _PLAIN[op.name] = _operator(op.name, run, shapes, f"({arguments}) -> {result}")
    if op.wrt:
        _define_gradients(op)


def _define_gradients(op: Record) -> None:
    """The operators `…_forward` and `…_backward`, and what autograd does with them."""
    count, size = len(op.signature.made), len(op.names)
    plain = ", ".join(_arguments(op)[0])

    def run(*values: Any) -> list[Any]:
        given = _given(op, values[:-1])
        op.check(given)
        pair, arrays = _pair(op, given, values[-1])
        return pair.values_of(arrays)

    def shapes(*values: Any) -> list[Any]:
        given = _given(op, values[:-1])
        op.results(given)
        pair, _ = _pair(op, given, values[-1])
        return [_empty(given, op, *each) for each in pair.outlines]

    def run_back(*values: Any) -> list[Any]:
        wrt, found, cotangents = values[size:]
        pair, arrays = _pair(op, _given(op, values[:size]), wrt)
        made = pair.backward(pair.kept_of(arrays, found), cotangents)
        return list(made) if isinstance(made, tuple) else [made]

    def shapes_back(*values: Any) -> list[Any]:
        given = _given(op, values[:size])
        return [torch.empty_like(given[n], memory_format=torch.contiguous_format)
                for n in values[size].split(",")]  # fmt: skip

    forward = _operator(f"{op.name}_forward", run, shapes, f"({plain}, str wrt) -> Tensor[]")
    backward = _operator(
        f"{op.name}_backward", run_back, shapes_back,
        f"({plain}, str wrt, Tensor[] found, Tensor[] cotangents) -> Tensor[]",
    )  # fmt: skip
    _FORWARD[op.name], _BACKWARD[op.name] = forward, backward

    def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Tensors and the rest apart, as autograd wants them."""
        given = _given(op, inputs[:size])
        ctx.wrt = inputs[size] if len(inputs) > size else None
        arrays = {n: given.pop(n) for n in op.signature.arrays}
        ctx.rest = given
        if ctx.wrt is not None:
            pair, _ = _pair(op, given | arrays, ctx.wrt)
            needed = pair.needs
            arrays = {n: x if x is None or n in needed else _shell(x) for n, x in arrays.items()}
        found = list(output) if isinstance(output, (list, tuple)) else [output]
        ctx.save_for_backward(*arrays.values(), *found)

    def kept(ctx: Any) -> tuple[list[Any], list[Any]]:
        saved, split = ctx.saved_tensors, len(op.signature.arrays)
        given = {**ctx.rest, **dict(zip(op.signature.arrays, saved, strict=False))}
        return _values(op, given), list(saved[split:])

    def spread(wrt: str, made: Sequence[Any], more: int) -> tuple[Any, ...]:
        """One gradient for each argument."""
        named = dict(zip(wrt.split(","), made, strict=True))
        return (*(named.get(n) for n in op.names), *[None] * more)

    def back(ctx: Any, grads: Sequence[Any]) -> tuple[Any, ...]:
        values, found = kept(ctx)
        made = backward(*values, ctx.wrt, found, _cotangents(grads[:count], found))
        return spread(ctx.wrt, made, 1)

    def back_plain(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        values, results = kept(ctx)
        needs = dict(zip(op.names, ctx.needs_input_grad, strict=False))
        wrt = ",".join(n for n in op.wrt if needs.get(n))
        found = forward(*values, wrt)
        made = backward(*values, wrt, found, _cotangents(grads, results))
        return spread(wrt, made, 0)

    forward.register_autograd(back, setup_context=keep)
    _PLAIN[op.name].register_autograd(back_plain, setup_context=keep)


def _cotangents(grads: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """One for each float result, zero where nothing depends on it."""
    pairs = zip(grads, results, strict=False)
    return [torch.zeros_like(r) if g is None else g for g, r in pairs if r.is_floating_point()]


def _shell(x: Any) -> Any:
    """A tensor of the same shape and type that keeps nothing alive."""
    return x.new_empty(()).expand(x.shape)


def _operator(name: str, run: Any, shapes: Any, signature: str) -> Any:
    made = torch.library.custom_op(f"{SPACE}::{name}", run, mutates_args=(), schema=signature)
    made.register_fake(shapes)
    return made


for _op in OPS.values():
    define(_op)
