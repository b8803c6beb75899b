"""The CPU target: passes and LLVM. What is called is in `kernel`."""

from __future__ import annotations

from tilewright.ir.op import Intrinsic, Program, is_foreign, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.cpu_passes import PIPELINE
from tilewright.passes.run import Trace, run_pipeline
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.emit import emit_module
from tilewright.targets.cpu.host import LLVM_LOCK, Code, host, object_file, optimize
from tilewright.targets.cpu.llvm_text import symbol


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
    module, sizes, watches = emit_module(program, f"{host().vector_bits}-bit vectors")
    source = module.text()
    with LLVM_LOCK:
        image = object_file(optimize(source))
    names = (symbol(k.name) for k in program.kernels)
    return Code(
        tuple(zip(names, sizes, strict=True)),
        program.scratch,
        tuple(sorted(module.imports)),
        source,
        image,
        tuple(watches),
    )
