"""The vocabulary of passes:

    from tilewright.passes.core import *

What a file imports by name besides is what it asks for: layouts, other analyses, other passes.
"""

from tilewright.ir.core import *
from tilewright.passes.words import *
