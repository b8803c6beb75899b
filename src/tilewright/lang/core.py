"""The vocabulary of words: that of the IR, the program that is built, what names stand for, and the
checks of arguments. What traces ops takes all of it at once:

    from tilewright.lang.core import *
"""

from tilewright.ir.core import *
from tilewright.lang.builder import Builder as Builder
from tilewright.lang.builder import current as current
from tilewright.lang.builder import current_block as current_block
from tilewright.lang.builder import current_kernel as current_kernel
from tilewright.lang.check import check_regions as check_regions
from tilewright.lang.check import fits as fits
from tilewright.lang.check import is_const as is_const
from tilewright.lang.handles import WORDS as WORDS
from tilewright.lang.handles import Access as Access
from tilewright.lang.handles import Tile as Tile
from tilewright.lang.handles import Tiles as Tiles
from tilewright.lang.handles import Variable as Variable
from tilewright.lang.handles import describe as describe
from tilewright.lang.handles import region_of as region_of
from tilewright.lang.handles import written_region as written_region
from tilewright.lang.types import integer as integer
from tilewright.lang.types import one_of as one_of
from tilewright.lang.types import shape_tuple as shape_tuple
from tilewright.lang.types import static_int as static_int
from tilewright.lang.where import locate as locate
from tilewright.support.errors import at as at
from tilewright.support.errors import entry as entry
from tilewright.support.errors import swap as swap
from tilewright.support.errors import word as word
