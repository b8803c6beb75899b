"""What generated callers of every target share, and what they ask of PyTorch's tensors: whether
they look like those of the call before, and whether autograd would lose track of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from tilewright.support.errors import LaunchError

Guard: TypeAlias = Callable[..., bool]
MISSING: Any = type("missing", (), {"__repr__": lambda _: "<no argument>"})()


def generated(text: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function `call` that `text` defines, under another name. Its file is one of ours as far
    as errors go: they point to the caller's line."""
    exec(compile(text, str(Path(__file__).with_name(f"<launch {name}>")), "exec"), names)
    call: Callable[..., Any] = names["call"]
    call.__name__ = call.__qualname__ = name
    return call


def passed(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a generated function that somebody gave."""
    while given and given[-1] is MISSING:
        given = given[:-1]
    return given


def never(*_: Any) -> bool:
    return False


def guard_of(tensors: Sequence[Any], written: Sequence[Any]) -> Guard:
    """A function that says whether other tensors look exactly like these to a launch: their types,
    element types, devices, shapes, strides, and what autograd does with them. The kernel writes
    those that `written` lists."""
    if not guards_work():
        return never
    try:
        guard = _guard(tensors)
        if not guard(*tensors):
            return never
        if not any(t.requires_grad for t in written):
            return guard
        # the guard knows whose gradients are wanted, but not whether anybody records
        from torch import is_grad_enabled

        return lambda *others: not is_grad_enabled() and guard(*others)
    except Exception:  # somebody's subclass
        return never


def _guard(tensors: Sequence[Any]) -> Guard:
    from torch._C._dynamo.guards import TensorGuards

    guards = TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(t.shape) for t in tensors],
        dynamic_dims_strides=[list(t.stride()) for t in tensors],
    )
    check: Guard = guards.check
    return check


@cache
def guards_work() -> bool:
    """PyTorch does not promise this interface, so it is tried before it is relied on."""
    try:
        import torch

        x = torch.empty(2, 3, 4)
        check = _guard([x, x[:1]])
        others = [x.half(), x[:, :2], x.reshape(6, 4), x.permute(1, 0, 2), x.to("meta"), x[..., :1]]
        others += [x[::2], torch.nn.Parameter(x), x.numpy(), None]
        others += [torch.empty(2, 3, 4, dtype=torch.complex64).conj().imag]  # minus what it holds
        good = check(x.clone(), x.clone()[:1])
        bad = [check(x, other) for other in others] + [check(o, x[:1]) for o in others]
        return good is True and not any(bad)
    except Exception:  # another PyTorch, or none: reading facts one by one needs less of it
        return False


def is_recorded(tensor: Any) -> bool:
    """Whether autograd follows what happens to `tensor` now."""
    if not tensor.requires_grad:
        return False
    from torch import is_grad_enabled

    return bool(is_grad_enabled())


def write_refused(tensor: Any, name: str) -> LaunchError:
    """The error for a kernel that writes `tensor` while autograd follows it. A kernel reads such a
    tensor as `tensor.detach()` is read; a write is PyTorch's in-place operation, which a leaf
    refuses, and which autograd would have to see on any other tensor."""
    leaf = bool(getattr(tensor, "is_leaf", True))
    return LaunchError(
        f"{name} requires a gradient, and the kernel writes it in place",
        expected="a written tensor without requires_grad, or a call under torch.no_grad()",
        got=("a leaf" if leaf else "a tensor that autograd computed") + " with requires_grad=True "
        "while gradients are recorded",
        fix=f"call the kernel under torch.no_grad(), or pass {name}.detach(), which shares its "
        "memory; where gradients should flow through the kernel, make it an operator: "
        "kernel.as_torch_op(…)",
    )


def read_only(name: str, array: Any) -> LaunchError:
    return LaunchError(
        f"{name} is written by the kernel, but the array is read-only",
        expected="an array that may be written",
        got=f"a read-only {type(array).__name__}",
        fix=f"pass a writable copy; JAX arrays never change: let the kernel make {name} "
        "(out_idx=[…], or T.empty) and return it",
    )


def misaligned(name: str, unit: int, address: int) -> LaunchError:
    return LaunchError(
        f"{name} does not start at a multiple of {unit} bytes",
        expected=f"an address that is a multiple of {unit}",
        got=f"{address:#x}",
        fix="pass a copy: x.copy() / x.clone()",
    )


@cache
def write_counter() -> Callable[..., None]:
    """A function that tells autograd that a kernel wrote tensors: what it saved of them is no
    longer what it was, and a backward pass over that must not go unnoticed."""
    from torch.autograd.graph import increment_version

    def count(*tensors: Any) -> None:
        for tensor in tensors:
            if not tensor.is_inference():  # those have no backward pass
                increment_version(tensor)

    return count
