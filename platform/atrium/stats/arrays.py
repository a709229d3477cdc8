"""The array type of `atrium.stats`, defined here because this package imports no other package of Atrium."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
