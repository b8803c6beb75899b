"""The vocabulary of the lowering: that of passes, where elements lie, its state, and the loops over
what a thread holds.

    from tilewright.passes.lower.core import *
"""

from tilewright.passes.core import *
from tilewright.passes.layout.addresses import *
from tilewright.passes.layout.thread_layouts import coalesced as coalesced
from tilewright.passes.lower.lowering import *
from tilewright.passes.lower.map_loops import *
