"""The kernels of a Python file, compiled for the targets of an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.formula.function import MathFunction
from tilewright.lang.trace import PrimFunc
from tilewright.runtime.jit import Jit, compile
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import CompileError
from tilewright.tools.collect import (
    Skipped,
    file_names,
    missing_text,
    parse_arguments,
    usable_of,
    with_arrays,
)
from tilewright.tune.configs import Autotuned


@dataclass(frozen=True)
class Named:
    """A kernel for each target, and what the file, with these sizes, calls it."""

    name: str
    sizes: Mapping[str, Any]
    builds: tuple[CompiledKernel, ...]


def collect(
    file: str, wanted: Sequence[str], sizes: Sequence[str], targets: Sequence[str]
) -> tuple[list[Named], list[Skipped]]:
    """The kernels that `wanted` names, in the file or by themselves, for each of `sizes`; without
    names, all. And what was passed over, with the reason."""
    names = file_names(file)
    found: dict[Any, Named] = {}
    skipped: list[Skipped] = []
    for text in sizes or [""]:
        chosen = with_arrays(parse_arguments(text, names, "--sizes"))
        for name, value in names.items():
            text_name = _text_name(value)
            if text_name is None or (wanted and not {name, text_name} & {*wanted}):
                continue
            builds, why = zip(*(_kernels(value, chosen, t) for t in targets), strict=True)
            for each in zip(*builds, strict=True):
                found.setdefault(each[0].program, Named(name, _used(value, chosen), each))
            if not builds[0] and why[0]:
                skipped.append(Skipped(name, why[0].replace("--args", "--sizes")))
    known = {word for n in found.values() for word in (n.name, n.builds[0].name)}
    skipped = [each for each in dict.fromkeys(skipped) if each.name not in known]
    lost = [name for name in wanted if name not in known]
    if lost or not found:
        raise CompileError(
            f"{file} made no kernel" + (f" named {lost[0]!r}" if lost else ""),
            expected=f"one of {', '.join(sorted(known))}" if known else "",
            got=missing_text([s for s in skipped if not lost or s.name in lost]),
            fix="give sizes as in a call: --sizes 'M=1024, N=512'; arrays of formulas by type and "
            "shape: --sizes 'x=\"float32[8, 64]\"'",
            code="arguments",
        )
    return list(found.values()), skipped


def _text_name(value: Any) -> str | None:
    """What a kernel, or what makes one, is called where it is defined; of anything else None."""
    match value:
        case PrimFunc():
            return value.program.name
        case CompiledKernel():
            return value.name
        case MathFunction() | Jit():
            return str(value.__name__)  # type: ignore[union-attr]
        case Autotuned():
            return _text_name(value.jitted)
    return None


def _used(value: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    value = value.jitted if isinstance(value, Autotuned) else value
    if isinstance(value, (PrimFunc, CompiledKernel)):
        return {}
    direct = isinstance(value, Jit) and value.direct
    return {n: v for n, v in chosen.items() if direct or n in value.signature.parameters}


def _kernels(value: Any, chosen: dict[str, Any], target: str) -> tuple[list[CompiledKernel], str]:
    """The kernels of a name of the file; without any, why."""
    if isinstance(value, PrimFunc):
        return [compile(value, value.out_idx, target)], ""
    if isinstance(value, CompiledKernel):
        return [_again(value, target)], ""
    if isinstance(value, MathFunction):
        known = value.signature.parameters
        given = {n: v for n, v in chosen.items() if n in known}
        whole = all(n in given or p.default is not p.empty for n, p in known.items())
        why = value.try_with(given)
        if given and whole and not why:
            return [value.kernel_like(target, **given)], ""
        return value.kernels_for(target), why
    value = value.jitted if isinstance(value, Autotuned) else value
    usable, lacks = usable_of(value, chosen)
    called = [getattr(k, "kernel", k) for k in value._kernels.values()]
    if called and not usable:
        return [_again(kernel, target) for kernel in called], ""
    if lacks and not value.direct:
        return [], f"pass --sizes '{', '.join(f'{n}=…' for n in lacks)}'"
    try:
        return [value.on(target).compile(**usable)], ""
    except CompileError as error:
        if error.diagnostic.code != "arguments":
            raise
        return [], f"{error.message}: pass --sizes '…=…'"


def _again(kernel: CompiledKernel, target: str) -> CompiledKernel:
    """The same text for another target."""
    outputs = kernel.launcher.outputs
    return CompiledKernel(kernel.program, target=target, out_idx=outputs, options=kernel.options)
