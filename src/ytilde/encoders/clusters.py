"""k-means."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadInput


def assign(features: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each row, [N]; in parts, so that N rows need no [N, G] at once."""
    return torch.cat([_distances(part, centres).argmin(-1) for part in features.split(65_536)])


def kmeans(features: Tensor, clusters: int, generator: torch.Generator, steps: int = 50) -> Tensor:
    """Centres [G, D] by k-means++ (Arthur and Vassilvitskii 2007) and Lloyd's steps.

    On the features' device, whatever N is. A cluster that loses all its rows starts again at the
    row that is farthest from its own centre. Stops when no row changes its cluster.
    """
    if clusters > len(features):
        raise BadInput(
            f"{len(features)} rows cannot be put into {clusters} clusters: ask for fewer"
        )
    centres = _spread_out(features, clusters, generator)
    before = torch.full((len(features),), -1, device=features.device)
    for _ in range(steps):
        group = assign(features, centres)
        if torch.equal(group, before):
            break
        before = group
        size = torch.bincount(group, minlength=clusters)
        total = torch.zeros_like(centres).index_add_(0, group, features)
        mean = total / size.clamp_min(1)[:, None]
        far = (features - mean[group]).square().sum(-1).argsort(descending=True)
        empty = (size == 0).cumsum(0) - 1  # which of the farthest rows an empty cluster takes
        centres = torch.where((size == 0)[:, None], features[far[empty.clamp_min(0)]], mean)
    return centres


def _spread_out(features: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """k-means++: each centre is drawn with a chance that grows with its squared distance."""
    u = torch.rand(clusters, generator=generator, dtype=torch.float64).tolist()
    chosen = [int(u[0] * len(features))]
    nearest = torch.full((len(features),), torch.inf, device=features.device)
    for k in range(1, clusters):
        apart = (features - features[chosen[-1]]).square().sum(-1)
        nearest = torch.minimum(nearest, apart)
        ends = nearest.double().cumsum(0)
        chosen.append(int(torch.searchsorted(ends, ends[-1] * u[k]).clamp(max=len(ends) - 1)))
    return features[torch.tensor(chosen, device=features.device)]


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances less a's own squares, which decide nothing: [N, G]."""
    with torch.autocast(a.device.type, enabled=False):  # bfloat16 puts 1 % of rows elsewhere
        return b.square().sum(-1) - 2 * a @ b.T
