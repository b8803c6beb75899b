"""The vocabulary of the IR: ops, expressions, buffers, types and how they are rebuilt.

Passes, targets and the machine speak of little else, so they take all of it at once:

    from tilewright.ir.core import *

What a file imports by name besides is what it asks for: analyses, layouts, other passes.
"""

from tilewright.ir.buffer import *
from tilewright.ir.dtype import *
from tilewright.ir.expr import *
from tilewright.ir.op import *
from tilewright.ir.rewrite import *
from tilewright.ir.warps import *
