"""The function that users call, generated for a kernel's parameters.

A warm launch of three tensors has to cost little more than the driver's own work, and reading
their shapes from Python alone costs a third of that. So there are three roads, each the next one's
fallback:

1. PyTorch compares the tensors' types, element types, devices, shapes and strides with those of
   the call before in one call of its own (what `torch.compile` guards its code with); pointers,
   scalars and the stream are then the key of the launch.
2. All facts, read one by one, are the key. Where only addresses and scalars are new, a launch of
   before is made again with these.
3. The arguments are read whatever library they come from, checked, and the launch is prepared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from tilewright.ir.bind import in_order
from tilewright.support.errors import entry
from tilewright.targets.arrays import ArrayView, torch_stream
from tilewright.targets.cuda.launch import (
    KEPT,
    CudaModule,
    Form,
    Scalar,
    Step,
    TensorArg,
    encode_scalar,
    facts_of,
    read_arguments,
)
from tilewright.targets.cuda.prepared import Prepared
from tilewright.targets.cuda.tensormap import Sizes
from tilewright.targets.torch_tensors import MISSING, Guard, generated, guard_of, never, passed

Ready: TypeAlias = tuple[Step, ...] | Prepared
# a guard, the launches of tensors that pass it, and their device
Recent: TypeAlias = tuple[Guard, dict[Any, Ready], int]

ALIGNED = 512  # bytes: no more is asked of an address, so that what is left over decides the rest

# tensors that look alike and yet fail each other's guard (they differ in autograd, or one is
# passed twice) would have theirs made again and again
_GUARDS = 16


_NOTHING: Recent = (never, {}, 0)
NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})


class Looks:
    """What a guard covers: tensors of these shapes, strides and element types."""

    def __init__(self) -> None:
        self.recent: Recent = _NOTHING
        self.guards = 1
        self.calls: dict[Any, Prepared] = {}  # one for each alignment, stream and size


@dataclass(frozen=True)
class Entry:
    """A launch that was prepared before."""

    ready: Ready
    call: Prepared
    looks: Looks


def make_caller(
    module: CudaModule,
    params: Sequence[TensorArg | Scalar],
    check: Callable[[Mapping[str, ArrayView]], Sizes],
    forms: Sequence[Form] = (),
    shapes: Mapping[str, tuple[int, ...]] = NO_SHAPES,
) -> Callable[..., None]:
    """A function of the arguments `params` (and `stream=`) that checks and launches `module`, or
    the first of `forms` that takes the call. `shapes`: in which contiguous tensors are seen.

    `check` sees the arrays' views, raises `LaunchError` or returns the sizes. It must follow from
    the views alone, for it runs once for each distinct set of them.
    """
    modules = (module, *(form.module for form in forms))
    direct = not any(each.scratch or each.waits for each in modules)
    name = module.specs[0].kernel if module.specs else "kernel"
    words = [p.name for p in params]
    tensors = [p for p in params if isinstance(p, TensorArg)]
    written = {p.name for p in tensors if p.written}
    at = [f"x{i}" for i in range(len(params))]
    kept: dict[Any, Entry] = {}  # not the module's: another caller may check otherwise
    looks: dict[Any, Looks] = {}
    names: dict[str, Any] = {"recent": _NOTHING, "missing": MISSING}

    # ------------------------------------------------------------------------- the roads behind

    def again(key: Any, values: tuple[Any, ...], alike: bool) -> Ready | None:
        """The launch of these facts, if it is known; the first road leads to it from now on."""
        entry = kept.get(key)
        if entry is None:
            return elsewhere(key, values)
        recent = entry.looks.recent
        if recent is names["recent"] and not alike:
            # the guard that stands was made for the same facts, and yet refused these tensors
            if entry.looks.guards == _GUARDS:
                return entry.ready
            entry.looks.guards += 1
            given = [v for v, p in zip(values, params, strict=True) if isinstance(p, TensorArg)]
            recent = entry.looks.recent = (guard(given), recent[1], given[0].get_device())
        names["recent"] = recent
        return entry.ready

    def elsewhere(key: Any, values: tuple[Any, ...]) -> Ready | None:
        """The launch of tensors that look like known ones and lie elsewhere."""
        alike, hot = looks.get(covered(key)), [key[i] for i in pointers]
        first = alike.calls.get(sort(hot)) if alike is not None else None
        given = [v for v, p in zip(values, params, strict=True) if isinstance(p, TensorArg)]
        if alike is None or first is None or not alike.recent[0](*given):
            return None
        call = first.moved(dict(zip(words, hot[1:], strict=True)))
        if call is None:
            return None
        bound()
        remember(key, Entry(call.steps(0) if direct else call, call, alike), given)
        return kept[key].ready

    def covered(key: Any) -> tuple[Any, ...]:
        return tuple(f for i, f in enumerate(key) if i not in pointers)

    def sort(hot: Sequence[Any]) -> tuple[Any, ...]:
        """What a launch depends on beside what is filled in."""
        stream, *rest = hot
        return stream, *(
            value % ALIGNED if isinstance(p, TensorArg) else value if p.dtype.is_int else None
            for p, value in zip(params, rest, strict=True)
        )

    def bound() -> None:
        if len(kept) >= KEPT:
            kept.clear()
            looks.clear()
            names["recent"] = _NOTHING

    @entry
    def slow(given: tuple[Any, ...], named: Mapping[str, Any], stream: Any, key: Any) -> None:
        args = dict(zip(words, in_order(name, words, passed(given), named), strict=True))
        views, where, scalars = read_arguments(params, args, stream)
        views = {n: v.seen_in(shapes[n]) if n in shapes else v for n, v in views.items()}
        general = (where, facts_of(views), tuple(scalars.items()))
        found = kept.get(general)
        if found is None:
            sizes = check(views)
            form = module.formed(forms, views, sizes)
            call = Prepared(form, views, scalars, sizes, where, written)
            found = Entry(call.steps(0) if direct else call, call, Looks())
        bound()
        kept[general] = found
        if key is not None:
            remember(key, found, [args[p.name] for p in tensors])
        run(found.ready)
        module.hold(views, where)

    def remember(key: Any, found: Entry, given: Sequence[Any]) -> None:
        alike = looks.get(covered(key))
        if alike is None:
            alike = looks[covered(key)] = Looks()
            alike.recent = (guard(given), {}, given[0].get_device())
        hot = tuple(key[i] for i in pointers)
        kept[key] = Entry(found.ready, found.call, alike)
        alike.recent[1][hot] = found.ready
        alike.calls.setdefault(sort(hot), found.call)
        names["recent"] = alike.recent

    def guard(given: Sequence[Any]) -> Guard:
        return guard_of(given, [v for v, p in zip(given, tensors, strict=True) if p.written])

    def run(ready: Ready) -> None:
        if isinstance(ready, Prepared):
            ready.run()
        else:
            module.run(ready)

    # ------------------------------------------------------------------------ the generated one

    facts: list[str] = []
    pointers: list[int] = [0]  # where in the key the stream, pointers and scalars are
    for x, p in zip(at, params, strict=True):
        pointers.append(1 + len(facts))
        if isinstance(p, TensorArg):
            layout = "stride()" if p.strided else "is_contiguous()"
            facts += [f"{x}.data_ptr()", f"{x}.shape", f"{x}.dtype", f"{x}.{layout}"]
            if p.written:
                facts.append(f"{x}.requires_grad and recording()")
        else:
            facts.append(f"encode_{x}({x})")
            names[f"encode_{x}"] = _encoder(p)
    several = module.driver.device_count > 1
    xs = [x for x, p in zip(at, params, strict=True) if isinstance(p, TensorArg)]
    if several:
        facts += [f"{x}.get_device()" for x in xs]

    def first_use() -> None:
        """On the first call with PyTorch's tensors: what of PyTorch the roads above use."""
        import torch

        names["raw_stream"] = getattr(torch._C, "_cuda_getCurrentRawStream", torch_stream)
        names["current"] = getattr(torch._C, "_cuda_getDevice", None)
        names["launch"] = module.driver.launch
        names["recording"] = torch.is_grad_enabled

    def first_stream(device: int) -> int:
        first_use()
        return int(names["raw_stream"](device))

    def first_device() -> int:
        first_use()
        return int(names["current"]())

    names.update(
        slow=slow, again=again, failed=entry(module.failed),
        raw_stream=first_stream, current=first_device,
    )  # fmt: skip
    # the thread's device must be the tensors' own: the driver launches where the thread is
    here = "current() == device and " if several else ""
    device = "device" if several else "0"
    hot = [f"{x}.data_ptr()" if x in xs else f"encode_{x}({x})" for x in at]
    stream = "" if "stream" in words else "stream=None, "
    values = "".join(f"{x}, " for x in at)
    launch = "found.run()"
    if direct:
        launch = """\
for step in found:
        status = launch(*step.arguments)
        if status:
            failed(status, step)"""
    read = f"""\
    try:
        guard, near, device = recent
        alike = {here}guard({", ".join(xs)})
        found = near.get(({", ".join([f"raw_stream({device})", *hot])},)) if alike else None
        if found is None:
            {f"device = {xs[0]}.get_device()" if several and xs else "pass"}
            {"if current() != device: raise ValueError" if several else "pass"}
            key = ({", ".join([f"raw_stream({device})", *facts])},)
            found = again(key, ({values}), alike)
    except Exception:  # not PyTorch's, or wrong: the last road knows, or says what is wrong
        return slow(({values}), {{}}, None, None)
    if found is None:
        return slow(({values}), {{}}, None, key)
    {launch}
"""
    text = f"""\
def call({"".join(f"{x}=missing, " for x in at)}{"/, " if at else ""}*rest, {stream}**named):
    if rest or named{" or stream is not None" if stream else ""}:
        return slow(({values}*rest,), named, {"stream" if stream else "None"}, None)
{read if xs else f"    return slow(({values}), {{}}, None, None)"}
"""
    return generated(text, name, names)


def _encoder(p: Scalar) -> Callable[[Any], bytes]:
    """Bytes, not numbers, go into keys: 0.0 and -0.0 are equal, and so are 1 and True."""
    codes = {"float32": "<f", "float64": "<d", "int32": "<i", "int64": "<q", "uint32": "<I"}
    if p.dtype.name in codes:
        return struct.Struct(codes[p.dtype.name]).pack
    return lambda value: encode_scalar(p.name, p.dtype, value)
