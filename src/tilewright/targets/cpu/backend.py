"""The CPU target: passes and LLVM. What is called is in `kernel`."""

from __future__ import annotations

from tilewright.ir.op import Intrinsic, Program, is_foreign, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.expand_copies import expand_copies
from tilewright.passes.canonicalize.fuse_maps import absorb_loops, forward_copies, fuse_maps
from tilewright.passes.canonicalize.loops import COUNT
from tilewright.passes.canonicalize.rules import LABEL
from tilewright.passes.canonicalize.simplify_indices import simplify_indices
from tilewright.passes.lower.split_at_barriers import split_at_barriers
from tilewright.passes.pipeline import Pass, Trace, run_pipeline
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.code import Code
from tilewright.targets.cpu.emit import emit_module
from tilewright.targets.cpu.host import LLVM_LOCK, host, object_file, optimize
from tilewright.targets.cpu.llvm_text import symbol

__all__ = ["PIPELINE", "generate", "lower"]

PIPELINE = (
    COUNT,
    Pass(
        "forward_copies",
        forward_copies,
        "while copies are still statements: products then read tensors in place",
        whole_program=True,
    ),
    LABEL,
    Pass(
        "expand_copies",
        expand_copies,
        "copies become nests, which everything below understands",
        whole_program=True,
    ),
    Pass(
        "split_at_barriers",
        split_at_barriers,
        "threads become nests too, so that what follows sees all there are",
        whole_program=True,
    ),
    Pass(
        "simplify_indices",
        simplify_indices,
        "on the indices the nests will really have",
        whole_program=True,
    ),
    Pass("absorb_loops", absorb_loops, "before fusing, which compares boxes"),
    Pass("fuse_maps", fuse_maps, "last: what is written and read at one point stays in registers"),
)


def lower(program: Program, target: Target) -> Trace:
    """The program after every pass."""
    for op in (op for kernel in program.kernels for op in walk_ops(kernel)):
        if isinstance(op, Intrinsic) and is_foreign(op):
            raise CompileError(
                f"the CPU target cannot run {op.name}: it is foreign code, for a GPU",
                loc=op.loc,
                fix="compile it for target='cuda', or write it with operations every target has",
            )
    return run_pipeline(program, target, PIPELINE)


def generate(program: Program) -> Code:
    """Machine code for a program that all passes have seen."""
    module, layouts, watches = emit_module(program, f"{host().vector_bits}-bit vectors")
    source = module.text()
    with LLVM_LOCK:
        image = object_file(optimize(source))
    names = [symbol(k.name) for k in program.kernels]
    return Code(
        tuple((n, layout.arena_bytes) for n, layout in zip(names, layouts, strict=True)),
        layouts[0].slots if layouts else {},
        program.scratch,
        tuple(sorted(module.imports)),
        source,
        image,
        tuple(watches),
    )
