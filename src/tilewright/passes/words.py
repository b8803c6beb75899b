"""What passes speak of besides the IR: what is known of programs, targets, reasons and errors."""

from tilewright.ir import scope
from tilewright.ir.analysis.aliases import Aliases, aliases
from tilewright.ir.analysis.bounds import Ranges, bounds, multiple_of, prove, stride_of
from tilewright.ir.analysis.effects import (
    leaves_early,
    mentioned,
    touched,
    used_outside,
    written_by,
    written_in,
)
from tilewright.ir.analysis.uniform import PerThread, per_thread
from tilewright.ir.atoms import Feature
from tilewright.ir.marks import read_variables
from tilewright.ir.simplify import simplify
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.rules import Facts, expand_op, kernel_pass, rule
from tilewright.passes.reasons import at_line, because, costs
from tilewright.support import errors
from tilewright.support.errors import CompileError, at

__all__ = [
    "Aliases", "CompileError", "Facts", "Feature", "PerThread", "Ranges", "Target", "aliases",
    "at", "at_line", "because", "bounds", "costs", "errors", "expand_op", "kernel_pass",
    "leaves_early", "mentioned", "multiple_of", "per_thread", "prove", "read_variables", "rule",
    "scope", "simplify", "stride_of", "touched", "used_outside", "written_by", "written_in",
]  # fmt: skip
