"""The variance of a mean over problems in clusters, such as the problems of one contest.

If an effect varies by cluster, the problems of a cluster are not independent draws. The variance of the mean
is then estimated from the squared totals of the clusters (CR2). This estimate is unbiased if problems have
equal variance. Its degrees of freedom, after Bell and McCaffrey, are at most the number of clusters minus 1.
With one problem per cluster, both equal the values for independent problems. All functions are pure.

Sources: Bell and McCaffrey 2002; Pustejovsky and Tipton 2018. For a mean the adjustment matrices have closed
forms: cluster g, with a share w_g of the problems, has the weight 1 / (1 - w_g).

Axes: P problems, C clusters; leading axes are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atrium.stats.arrays import Floats

MIN_CLUSTERS = 6
"""Minimum number of clusters for statements about new clusters."""


def cluster_numbers(names: Sequence[str | None]) -> NDArray[np.int64] | None:
    """Return the index of each problem's cluster [P], or None if no two problems share a cluster.

    A problem without a cluster name forms a cluster of its own.
    """
    keys = [f"of {name}" if name is not None else f"{place}" for place, name in enumerate(names)]
    if len(set(keys)) == len(keys):
        return None
    numbers: NDArray[np.int64] = np.unique(keys, return_inverse=True)[1]
    return numbers


def clusters_words(num: int) -> str:
    """Return text for `num` clusters: `12 clusters`, or `new problems of these 2 sources` for fewer than six.

    With fewer than six clusters, the interval is for new problems of these clusters only.
    """
    if num >= MIN_CLUSTERS:
        return f"{num} clusters"
    return f"new problems of {'this one source' if num == 1 else f'these {num} sources'}"


def sources_words(cluster_B: Sequence[ArrayLike | None]) -> str:
    """Return text that describes the clusters of each benchmark. Benchmarks without clusters are left out."""
    return " and ".join(clusters_words(num_clusters(one)) for one in cluster_B if one is not None)


def num_clusters(cluster_P: ArrayLike) -> int:
    """Return the number of different clusters."""
    return len(np.unique(np.asarray(cluster_P)))


def variance_of_mean(value_P: ArrayLike, cluster_P: ArrayLike | None = None) -> Floats:
    """Return the CR2 variance of the mean over the last axis. Without clusters, problems are independent.

    Raises `ValueError` for fewer than two problems or clusters.
    """
    values = np.asarray(value_P, dtype=np.float64)
    num_problems = values.shape[-1]
    size_C, numbers = _clusters(cluster_P, num_problems)
    total_C = values - values.mean(axis=-1, keepdims=True)
    if cluster_P is not None:
        total_C = total_C @ np.eye(len(size_C))[numbers]
    squares: Floats = (total_C**2 / (1.0 - size_C / num_problems)).sum(axis=-1) / num_problems**2
    return squares


def degrees_of_freedom(num_problems: int, cluster_P: ArrayLike | None = None) -> float:
    """Return Bell and McCaffrey's degrees of freedom of `variance_of_mean`.

    They are C - 1 for clusters of equal size, and P - 1 without clusters.
    """
    size_C, _ = _clusters(cluster_P, num_problems)
    share_C = size_C / num_problems
    root_C = share_C**2 / (1.0 - share_C)  # the squares of products off the diagonal are products of these
    off_diagonal = root_C.sum() ** 2 - (root_C**2).sum()
    return float(1.0 / ((share_C**2).sum() + off_diagonal))


def _clusters(cluster_P: ArrayLike | None, num_problems: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the size of each cluster [C], and the index of each problem's cluster [P]."""
    numbers: NDArray[np.int64] = np.arange(num_problems)
    if cluster_P is not None:
        numbers = np.unique(np.asarray(cluster_P), return_inverse=True)[1]
    if numbers.shape != (num_problems,) or numbers.max(initial=0) < 1:
        raise ValueError(f"expected a cluster for each of {num_problems} problems, and at least two clusters")
    return np.bincount(numbers).astype(np.float64), numbers
