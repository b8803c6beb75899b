"""The vocabulary of the IR: ops, expressions, buffers, types, fragments, how they are rebuilt, and
the errors that name a line.

Passes, targets and the machine speak of little else, so they take all of it at once:

    from tilewright.ir.core import *

What a file imports by name besides is what it asks for: analyses, layouts, other passes.
"""

from tilewright.ir.buffer import *
from tilewright.ir.dtype import *
from tilewright.ir.expr import *
from tilewright.ir.layout.fragment import IDLE as IDLE
from tilewright.ir.layout.fragment import Fragment as Fragment
from tilewright.ir.layout.layout import ComposedLayout as ComposedLayout
from tilewright.ir.layout.layout import Indices as Indices
from tilewright.ir.layout.layout import Layout as Layout
from tilewright.ir.layout.layout import LayoutError as LayoutError
from tilewright.ir.op import *
from tilewright.ir.rewrite import *
from tilewright.ir.warps import *
from tilewright.support.errors import CompileError as CompileError
from tilewright.support.errors import LaunchError as LaunchError
from tilewright.support.errors import Loc as Loc
from tilewright.support.errors import RunError as RunError
from tilewright.support.errors import SanitizerError as SanitizerError
