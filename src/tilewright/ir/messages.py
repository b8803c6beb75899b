"""What `print` says besides values: which block and thread, which buffer, of what shape; and where
a `device_assert` failed.

`label_kernel` writes it into the op, once and before any pass rewrites indices, so that every
target says the same. Of a labelled op the first `width` operands fill the `{}` of `text`. After
it a print shows the others, elements and values as they are, regions as tiles; of an assertion the
last operand is what must hold:

    intrinsic print (bx, tx, &s) text="block ({},) thread {}: here s: float32[4, 8] =" width=2
    intrinsic device_assert (bx, tx, tx < n) text="… failed in block ({},) thread {}: why" width=2
"""

from __future__ import annotations

from tilewright.ir.analysis.uniform import per_thread
from tilewright.ir.core import *

LABELLED = ("print", "device_assert")


def label_kernel(kernel: Kernel) -> Kernel:
    """`kernel` with every print labelled; itself where there is none."""
    if not any(_is_plain(op) for op in walk_ops(kernel)):
        return kernel
    return rebuild(kernel, body=_Labels(kernel).body(kernel.body, ()))


def _is_plain(op: Op) -> bool:
    return isinstance(op, Intrinsic) and op.name in LABELLED and op.width is None


class _Labels:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.found = per_thread(kernel)
        thread: Expr = const(0)
        step = 1
        for var, extent in zip(kernel.thread_vars, kernel.threads, strict=True):
            thread = thread + cast(var, INT32) * step
            step *= extent
        self.thread = thread

    def body(self, body: Body, map_vars: tuple[Var, ...]) -> Body:
        return tuple(self.op(op, map_vars) for op in body)

    def op(self, op: Op, map_vars: tuple[Var, ...]) -> Op:
        if _is_plain(op):
            assert isinstance(op, Intrinsic)
            return self.label(op, map_vars)
        inner = (*map_vars, *op.vars) if isinstance(op, Map) else map_vars
        return map_bodies(op, lambda body: self.body(body, inner))

    def label(self, op: Intrinsic, map_vars: tuple[Var, ...]) -> Intrinsic:
        places: list[Expr] = list(self.kernel.blocks)
        text = "block " + _holes(len(places))
        if map_vars:
            places += map_vars
            text += " at " + _holes(len(map_vars))
        elif self.differs(op):
            places.append(self.thread)
            text += " thread {}"
        if op.name == "device_assert":
            text = f"device_assert failed in {text}"
            text += f": {_literal(op.text)}" if op.text else ""
            return rebuild(op, args=(*places, *op.args), text=text, width=len(places))
        text += ":" + (" " + _literal(op.text) if op.text else "")
        for arg in op.args:
            if isinstance(arg, Region) and arg.tile:
                more, title = _title(arg)
                places += more
                text += f" {title}"
        return rebuild(op, args=(*places, *op.args), text=text, width=len(places))

    def differs(self, op: Intrinsic) -> bool:
        """Threads speak each for itself: not all of them come here, or with different operands."""
        if id(op) in self.found.controls:
            return True
        named = {a.buffer for a in op.args if isinstance(a, Region)}
        return self.found.source(expressions(op)) is not None or bool(named & self.found.buffers)


def _holes(count: int) -> str:
    return "(" + ", ".join(["{}"] * count) + ("," if count == 1 else "") + ")"


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _title(region: Region) -> tuple[list[Expr], str]:
    """The name, box and shape of what is printed, and what fills the holes in it."""
    places: list[Expr] = []

    def hole(e: Expr) -> str:
        if isinstance(e, Const):
            return str(e.value)
        places.append(e)
        return "{}"

    text = _literal(region.buffer.name)
    shape = region.extents if region.is_whole else region.tile
    if not region.is_whole:
        parts = []
        for start, extent in zip(region.starts, region.extents, strict=True):
            single = isinstance(extent, Const) and extent.value == 1
            parts.append(hole(start) + ("" if single else f":{hole(start + extent)}"))
        text += f"[{', '.join(parts)}]"
    text += f": {region.dtype}[{', '.join(hole(e) for e in shape)}] ="
    return places, text
