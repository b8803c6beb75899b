"""The vocabulary of the machine: that of the IR, values and memory, agents and their frames, access
by lanes, clocks and barriers, and the table of meanings. What gives ops a meaning takes all of it
at once:

    from tilewright.machine.core import *
"""

from tilewright.ir.core import *
from tilewright.machine.conflicts import *
from tilewright.machine.evaluate import *
from tilewright.machine.lanes import *
from tilewright.machine.meaning import *
from tilewright.machine.memory import *
from tilewright.machine.numbers import *
from tilewright.machine.state import *
from tilewright.machine.sync import *
