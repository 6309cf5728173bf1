"""How repeated measurements are written down."""

import numpy as np
from numpy.typing import NDArray


def spread(values: list[float] | NDArray[np.float64], digits: int) -> str:
    """Median [quartiles]."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
