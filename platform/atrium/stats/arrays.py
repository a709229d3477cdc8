"""The array type of the statistics, which import no other package of Atrium."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
