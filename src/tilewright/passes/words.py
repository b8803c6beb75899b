"""What passes speak of besides the IR: what is known of programs, targets, reasons and errors."""

from tilewright.ir import scope
from tilewright.ir.analysis.aliases import Aliases, aliases, places
from tilewright.ir.analysis.bounds import Ranges, bounds, linear, multiple_of, prove, stride_of
from tilewright.ir.analysis.effects import (
    leaves_early,
    mentioned,
    touched,
    used_outside,
    written_by,
    written_in,
)
from tilewright.ir.analysis.points import evaluate
from tilewright.ir.analysis.trips import values_of
from tilewright.ir.analysis.uniform import PerThread, per_thread
from tilewright.ir.atoms import ATOMS, Feature
from tilewright.ir.exchanges import meets_inside
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.marks import read_variables
from tilewright.ir.simplify import simplify
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.rules import Facts, expand_op, kernel_pass, rule
from tilewright.passes.reasons import at_line, because, costs
from tilewright.support import errors
from tilewright.support.errors import CompileError, at

__all__ = [
    "ATOMS", "Aliases", "CompileError", "Facts", "Feature", "INTRINSICS", "PerThread", "Ranges",
    "Target", "aliases", "at", "at_line", "because", "bounds", "costs", "errors", "evaluate",
    "expand_op", "kernel_pass", "leaves_early", "linear", "meets_inside", "mentioned",
    "multiple_of", "per_thread", "places", "prove", "read_variables", "rule", "scope", "simplify",
    "stride_of", "touched", "used_outside", "values_of", "written_by", "written_in",
]  # fmt: skip
