"""Features without labels: SimCLR pre-training, probes, nearest neighbours and k-means.

Chen et al., ICML 2020. What is learnt is an `Encoder`, from which every method can start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .augment import make_augment, two_views
from .checkpoint import locked
from .data import IGNORE, BadInput, Batch, Data, Spec, Step, check_ranges, unknown
from .encoder import Encoder
from .engine import RandomState, Recipe, Record, Trainer, to_device

CHECKPOINT_EVERY = 30.0  # seconds
DONE = "encoder.safetensors"  # in a stage's folder, once it is finished
NORMALISING = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
KEPT = ("device", "precision", "graph", "compile", "workers")  # of the recipe that follows

__all__ = ["Features", "SimCLR", "assign", "kmeans", "neighbours", "nt_xent", "probe", "simclr"]


def nt_xent(a: Tensor, b: Tensor, temperature: float = 0.5) -> Tensor:
    """The loss of each of the 2B views, eq. 1: its partner against all other views.

    a, b [B, D]: projections of two views of the same rows; cosine similarities over temperature.
    """
    with torch.autocast(a.device.type, enabled=False):
        z = torch.cat([a, b])
        z = F.normalize(z if z.dtype == torch.float64 else z.float(), dim=-1)
        n = len(z)
        rows = torch.arange(n, device=z.device)
        itself = rows[:, None] == rows
        similar = (z @ z.T / temperature).masked_fill(itself, -torch.inf)
        return F.cross_entropy(similar, (rows + n // 2) % n, reduction="none")


@dataclass(frozen=True)
class Settings:
    """How to pre-train. Chen et al. (appendix B.9) for 32x32 images, with plain SGD for LARS.

    They leave nothing of this to labels; the seed is its own, so that runs with other seeds share
    one encoder.
    """

    epochs: int = 200
    batch_size: int = 512
    optimizer: str = "sgd"
    lr: float = 0.0  # 0: 0.06 for each 128 rows of a batch; networks without normalisation, 1/8
    weight_decay: float = 5e-4
    temperature: float = 0.5
    width: int = 128  # of the projection
    augment: str = "auto"  # see augment.make_augment; auto: by the kind of input
    seed: int = 0
    probe: int = 10  # how many times the probes look at the features on the way

    def __post_init__(self) -> None:
        ranges = "epochs >= 1, batch_size >= 2, lr >= 0, temperature > 0, width >= 1, probe >= 0"
        check_ranges("simclr", dataclasses.asdict(self), ranges)

    @classmethod
    def parse(cls, text: str) -> Settings:
        """From "simclr" or "simclr:epochs=100,seed=1"."""
        name, _, options = text.partition(":")
        if name != "simclr":
            raise BadInput(unknown("pre-training", name, ["simclr"]))
        kinds = {each.name: type(getattr(cls, each.name)) for each in dataclasses.fields(cls)}
        found: dict[str, Any] = {}
        for item in filter(None, options.split(",")):
            option, _, value = item.partition("=")
            if option not in kinds:
                raise BadInput(unknown("option of simclr", option, list(kinds)))
            try:
                found[option] = kinds[option](value)
            except ValueError:
                raise BadInput(
                    f"option {option} of simclr must be a number, not {value!r}"
                ) from None
        return cls(**found)

    def recipe(self, shape: tuple[int, ...], like: Recipe) -> Recipe:
        """The stage's recipe, on the device and in the precision of another one."""
        own = {name: getattr(self, name) for name in ("epochs", "batch_size", "optimizer")}
        own |= {"lr": self.lr or 0.06 * self.batch_size / 128}
        own |= {"weight_decay": self.weight_decay, "seed": self.seed, "val": 0.0}
        own |= {"augment": self.augment if self.augment != "auto" else default_views(shape)}
        kept = {name: getattr(like, name) for name in KEPT}
        return Recipe(**own, **kept)


def default_views(shape: tuple[int, ...]) -> str:
    """The views for this kind of input; grey images may be digits, which a flip would change."""
    if len(shape) != 3:
        return "jitter0.5"
    return "simclr" if shape[0] == 3 else "resize0.3+color0.5"


class SimCLR(nn.Module):
    """Backbone and projection; the backbone is what remains."""

    mean: Tensor
    std: Tensor
    row_parallel = ("backbone",)  # what costs: compiled where that is asked for

    def __init__(self, spec: Spec, settings: Settings) -> None:
        super().__init__()
        self.temperature, self.images = settings.temperature, len(spec.shape) == 3
        self.register_buffer("mean", spec.mean.clone())
        self.register_buffer("std", spec.std.clone())
        self.backbone = spec.backbone()
        self.projection = nn.Sequential(
            nn.Linear(spec.dim, spec.dim, bias=False),
            nn.BatchNorm1d(spec.dim),
            nn.ReLU(True),
            nn.Linear(spec.dim, settings.width),
        )

    def features(self, x: Tensor) -> Tensor:
        return self.backbone((x - self.mean) / self.std)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """NT-Xent of two views of the batch, in one pass, so that batch statistics see both."""
        if self.images:
            views = self.features(torch.cat(two_views(step.augment, batch.x)))
        else:  # jitter is in units of the standardised features
            x = (batch.x - self.mean) / self.std
            views = self.backbone(torch.cat(two_views(step.augment, x)))
        first, second = self.projection(views).chunk(2)
        return nt_xent(first, second, self.temperature).mean()


def simclr(
    spec: Spec,
    data: Data,
    settings: Settings,
    recipe: Recipe,
    *,
    folder: Path | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Encoder:
    """Pre-train the spec's backbone on the inputs of `data`; labels are only probed.

    folder: where the stage leaves its checkpoints and its result; what is there is gone on with.
    Of processes that want the same encoder one makes it, and the others wait for it.
    """
    make_augment(settings.recipe(data.shape, recipe).augment, data.shape)  # refused before a folder
    if folder is None:
        return _simclr(spec, data, settings, recipe, None, on_record)
    done = folder / DONE
    with locked(folder / "lock"):
        if done.exists():
            return Encoder.load(done)
        encoder = _simclr(spec, data, settings, recipe, folder, on_record)
        encoder.save(done)
        for path in (*folder.glob("checkpoint-*"), *(folder / "stages").glob("*")):
            path.unlink(missing_ok=True)  # the way is not needed any more
    return encoder


def _simclr(
    spec: Spec,
    data: Data,
    settings: Settings,
    recipe: Recipe,
    folder: Path | None,
    on_record: Callable[[Record], None],
) -> Encoder:
    recipe = settings.recipe(data.shape, recipe)
    with RandomState(recipe.seed_of("init"), torch.device("cpu"))():
        module = SimCLR(spec, settings)
    if not settings.lr and not any(isinstance(m, NORMALISING) for m in module.backbone.modules()):
        # The loss does not see the features' scale, and nothing else holds it: at the full rate it
        # grows a hundredfold, and what is fine-tuned from there diverges.
        recipe = dataclasses.replace(recipe, lr=recipe.lr / 8)
    every = max(1, settings.epochs // max(1, settings.probe))

    def look(trainer: Trainer) -> Record:
        epoch = len(trainer.history) + 1
        return probes(trainer, module, data) if epoch % every == 0 else {}

    trainer = Trainer(
        module,
        recipe,
        folder=folder,
        resume=folder is not None,
        monitor=look,
        on_record=on_record,
        checkpoint_every=CHECKPOINT_EVERY,
    )
    to_device(module, trainer.device)
    trainer.train("simclr", module.loss, list(module.parameters()), data)
    about = dataclasses.asdict(settings) | {"lr": recipe.lr, "rows": len(data)}
    about |= {k: v for k, v in _last(trainer.history, "knn_accuracy").items() if k in PROBES}
    weights = {k: v.detach().cpu().contiguous() for k, v in module.backbone.state_dict().items()}
    name = getattr(spec.backbone, "backbone", None)
    name = name if isinstance(name, str) else None
    return Encoder(name, data.shape, spec.mean.cpu(), spec.std.cpu(), weights, about)


def _last(history: list[Record], key: str) -> Record:
    return next((record for record in reversed(history) if key in record), {})


# ---- what features are worth --------------------------------------------------------------------

PROBES = ("knn_accuracy", "linear_accuracy")


def probes(trainer: Trainer, module: SimCLR, data: Data, most: int = 10_000) -> Record:
    """`probe` of up to `most` rows, the same at every look; nothing where labels are missing."""
    known = (data.y.flatten(1)[:, 0] if data.y.dim() > 1 else data.y) != IGNORE
    if data.y.dim() > 1 or int(known.sum()) < 20:
        return {}
    rows = known.nonzero().flatten()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    some = data.rows(rows[order[:most]])
    h = trainer.map(lambda batch: module.features(batch.x).float(), some)
    return probe(h, some.y.to(h.device), data.num_classes)


def probe(features: Tensor, y: Tensor, num_classes: int, k: int = 20) -> Record:
    """Accuracy on the observed, maybe wrong labels of the last fifth of the rows, from the others.

    knn: the commonest label of the k nearest by cosine. linear: ridge regression to one-hot labels.
    """
    cut = len(y) * 4 // 5
    h = F.normalize(features, dim=-1)
    near = neighbours(h[cut:], h[:cut], k=min(k, cut))
    votes = F.one_hot(y[:cut][near], num_classes).sum(1)
    x = (features - features[:cut].mean(0)) / features[:cut].std(0).clamp_min(1e-6)
    x = F.pad(x, (0, 1), value=1.0).double()
    target = F.one_hot(y[:cut], num_classes).double()
    gram = x[:cut].T @ x[:cut] + 1e-2 * cut * torch.eye(x.shape[1]).to(x)
    scores = x[cut:] @ torch.linalg.solve(gram, x[:cut].T @ target)

    def right(scores: Tensor) -> float:
        return float((scores.argmax(-1) == y[cut:]).float().mean())

    return {"knn_accuracy": right(votes), "linear_accuracy": right(scores)}


def neighbours(queries: Tensor, keys: Tensor, k: int, same: bool = False) -> Tensor:
    """The k rows of `keys` [N, D] with the largest inner product to each query [M, D]: [M, k].

    same: queries are the keys; a row is not its own neighbour.
    """
    found = []
    for start in range(0, len(queries), 4096):
        part = queries[start : start + 4096]
        scores = part @ keys.T
        if same:
            own = torch.arange(len(part), device=part.device)
            scores[own, own + start] = -torch.inf
        found.append(scores.topk(k, dim=-1).indices)
    return torch.cat(found)


# ---- clusters -----------------------------------------------------------------------------------


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


class Features(nn.Module):
    """x -> features [B, dim], never trained by what uses them.

    An encoder's, of length one; or, raw, the standardised inputs.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: Spec, raw: bool) -> None:
        super().__init__()
        self.register_buffer("mean", spec.mean.clone())
        self.register_buffer("std", spec.std.clone())
        self.backbone = nn.Flatten() if raw else spec.backbone()
        self.raw, self.dim = raw, spec.mean.new_empty(spec.shape).numel() if raw else spec.dim
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> Features:
        return super().train(False)  # its batch statistics stay as they are

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        h = self.backbone((x - self.mean) / self.std).float()
        return h if self.raw else F.normalize(h, dim=-1)
