"""What ATen operators mean, by family."""

from tilewright.frameworks.torch.lowerings import (  # noqa: F401
    attention,
    convolution,
    folds,
    indexing,
    norms,
    pointwise,
    pooling,
    products,
    random,
    rows,
    shapes,
)
from tilewright.frameworks.torch.lowerings.table import ALONE as ALONE
from tilewright.frameworks.torch.lowerings.table import CONSTANT as CONSTANT
from tilewright.frameworks.torch.lowerings.table import FOLD as FOLD
from tilewright.frameworks.torch.lowerings.table import GATHER as GATHER
from tilewright.frameworks.torch.lowerings.table import LOWERINGS as LOWERINGS
from tilewright.frameworks.torch.lowerings.table import MOVED as MOVED
from tilewright.frameworks.torch.lowerings.table import POINTWISE as POINTWISE
from tilewright.frameworks.torch.lowerings.table import PRODUCT as PRODUCT
from tilewright.frameworks.torch.lowerings.table import VIEW as VIEW
from tilewright.frameworks.torch.lowerings.table import Lowering as Lowering
