"""CC: keep labels near their class's centre on which two heads agree. Zhao et al., ECCV 2022.

Fidelity: "Centrality and Consistency" for instance-dependent noise, on DivideMix's skeleton. Each
network has a bottleneck of 128 features with two more heads. Centrality: the cosine between an
example's features and the mean direction of the examples that are predicted to be of its label's
class, two Gaussians, kept above `threshold`. Consistency: the heads fit the kept labels and part
from each other (weight 0.1) for 100 class-balanced batches on held features; two Gaussians a class
on their L1 distance, and of the kept labels those with P(near) >= `agreement` stay. In training
heads and bottleneck go on fitting, on a held backbone; bottleneck and backbone bring the heads
together again (weight 0.1). The parting takes SGD's lr 0.02 whatever the recipe, and at most the
batches of one epoch where those are fewer than 100. Not here: joining rare classes by their
prediction entropy. The paper's thresholds are 0.3-0.5 and 0 or 0.3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data import IGNORE, Data, Spec, StepInfo
from ..engine import Trainer
from ..heads import Head
from ..losses import ce, mean, soft_ce
from ..method import Net, register
from ..selection import two_component_mixture
from ._shared import probs
from .dividemix import DivideMix

WIDTH = 128  # of the bottleneck
STEPS = 100  # in which the heads part; of a small data set not more than make an epoch
PULL = 0.1  # weight of the distance between the heads, both ways


class TwinNet(Net):
    """A Net with a bottleneck beside its head, and two heads on that."""

    def __init__(self, spec: Spec, head: Head) -> None:
        super().__init__(spec, head)
        self.bottleneck = nn.Linear(spec.dim, WIDTH)
        self.first = nn.Linear(WIDTH, spec.num_classes)
        self.second = nn.Linear(WIDTH, spec.num_classes)

    @property
    def twins(self) -> tuple[nn.Linear, nn.Linear]:
        return self.first, self.second


@register("cc")
@dataclass(eq=False, repr=False)
class CC(DivideMix):
    threshold: float = 0.4  # a label is kept where it is central with more than this probability
    agreement: float = 0.3  # and where the heads are near with at least this; 0 keeps all

    ranges = "0 <= agreement <= 1"

    def new_net(self) -> TwinNet:
        return TwinNet(self.spec, self.head(self.spec.dim, self.spec.num_classes))

    def divide(self, net: Net, data: Data, trainer: Trainer) -> Tensor:
        """P(the label is central) [N]; 0 where the two heads part, or where there is no label."""
        assert isinstance(net, TwinNet)
        h = trainer.map(lambda batch: net.features(batch.x), data).float()
        y = data.y.to(h.device)
        with torch.no_grad():
            features, guess = net.bottleneck(h), net.head(h).argmax(-1)
        cosine = centrality(features, guess, y, data.num_classes)
        central = two_component_mixture(torch.where(y == IGNORE, torch.nan, 1 - cosine))
        kept = central > self.threshold
        name = "net" if net is self.net else "peer"
        generator = trainer.recipe.generator("order", f"part/{name}/{len(trainer.history)}")
        chosen = torch.where(kept, y, IGNORE)
        size = trainer.recipe.batch_size
        steps = min(STEPS, -(-len(data) // size))
        push_heads_apart(net.twins, features, chosen, steps, size, generator)
        with torch.no_grad():
            apart = distance(*(probs(twin(features)) for twin in net.twins))
        for c in range(data.num_classes):
            own = kept & (y == c)
            kept[own] = two_component_mixture(apart[own]) >= self.agreement
        return central * kept

    def plain(self, net: Net, x: Tensor, y: Tensor) -> Tensor:
        """The warm-up trains the heads too, and the bottleneck; the backbone is not theirs."""
        assert isinstance(net, TwinNet)
        h = net.features(x)
        features = net.bottleneck(h.detach())
        twins = sum(mean(ce(twin(features), y), y) for twin in net.twins)
        return self.penalised(net.head(h), y) + twins

    def one_loss(self, net: Net, x: Tensor, targets: Tensor, step: StepInfo) -> Tensor:
        assert isinstance(net, TwinNet)
        h = net.features(x)
        features, half = net.bottleneck(h), len(x) // 2
        own = net.bottleneck(h[:half].detach())
        twins = sum(soft_ce(twin(own), targets[:half]).mean() for twin in net.twins)
        # through held heads: only what makes the features can bring them together
        held = (
            probs(functional.linear(features, t.weight.detach(), t.bias.detach()))
            for t in net.twins
        )
        return self.mixed_loss(net.head(h), targets, step) + twins + PULL * distance(*held).mean()


def centrality(features: Tensor, guess: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """Cosine [N] of features [N, D] with the centre of the rows guessed to be of the label's class.

    -1 where nothing is guessed to be of that class.
    """
    directions = functional.normalize(features, dim=1)
    sums = directions.new_zeros(num_classes, directions.shape[1]).index_add_(0, guess, directions)
    centres = functional.normalize(sums, dim=1)[y.clamp_min(0)]
    empty = guess.bincount(minlength=num_classes)[y.clamp_min(0)] == 0
    return (directions * centres).sum(1).masked_fill(empty, -1.0)


def distance(p: Tensor, q: Tensor) -> Tensor:
    """L1, summed over the classes, [...]."""
    return (p - q).abs().sum(-1)


@torch.enable_grad()
def push_heads_apart(
    twins: tuple[nn.Linear, nn.Linear],
    features: Tensor,
    y: Tensor,
    steps: int,
    size: int,
    generator: torch.Generator,
) -> None:
    """Move two heads apart while they fit the labels y, in steps of class-balanced batches.

    Rows labelled -1 are never drawn. generator: on the CPU.
    """
    known = y.cpu() != IGNORE
    if not known.any():
        return
    place = y.cpu().clamp_min(0)
    weights = known / place.bincount(weights=known.double()).clamp_min(1)[place]
    drawn = torch.multinomial(weights, steps * size, replacement=True, generator=generator)
    optimizer = torch.optim.SGD([*twins[0].parameters(), *twins[1].parameters()], 0.02, 0.9)
    for rows in drawn.to(y.device).split(size):
        first, second = (twin(features[rows]) for twin in twins)
        fit = ce(first, y[rows]) + ce(second, y[rows])
        optimizer.zero_grad()
        (fit - PULL * distance(probs(first), probs(second))).mean().backward()
        optimizer.step()
    optimizer.zero_grad()
