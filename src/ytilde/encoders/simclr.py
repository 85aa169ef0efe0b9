"""SimCLR pre-training (Chen et al., ICML 2020): features without labels.

What is learnt is an `Encoder`, from which every method can start.
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

from ..augment import make_augment, two_views
from ..data.precision import as_weights
from ..data.types import IGNORE, Batch, Data, Spec, StepInfo
from ..engine import RandomState, Recipe, Record, Trainer, to_device
from ..errors import BadInput, check_ranges, unknown_name_message
from ..files import locked
from ..runfolder import CHECKPOINTS, ENCODER, STAGES
from ..specs import parse_spec
from .encoder import Encoder
from .neighbours import probe

CHECKPOINT_EVERY = 30.0  # seconds
DONE = ENCODER  # in a stage's folder, once it is finished
NORMALISING = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
KEPT = ("device", "precision", "graph", "compile", "workers")  # of the recipe that follows


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
        if not isinstance(text, str):
            raise BadInput(f"pre-training is a text such as simclr:epochs=100, not {text!r}")
        name, _, texts = parse_spec(text, "pre-training")
        if name != "simclr":
            raise BadInput(unknown_name_message("pre-training", name, ["simclr"]))
        kinds = {each.name: type(getattr(cls, each.name)) for each in dataclasses.fields(cls)}
        found: dict[str, Any] = {}
        for option, value in texts.items():
            if option not in kinds:
                raise BadInput(unknown_name_message("option of simclr", option, list(kinds)))
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
        return self.backbone(as_weights((x - self.mean) / self.std, self))

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        """NT-Xent of two views of the batch, in one pass, so that batch statistics see both."""
        if self.images:
            views = self.features(torch.cat(two_views(step.augment, batch.x)))
        else:  # jitter is in units of the standardised features
            x = as_weights((batch.x - self.mean) / self.std, self)
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

    folder: where the stage leaves its checkpoints and its result; it continues from what is there.
    Of processes that want the same encoder one makes it, and the others wait for it.
    """
    make_augment(settings.recipe(data.shape, recipe).augment, data.shape)  # refused before a folder
    if folder is None:
        return _simclr(spec, data, settings, recipe, None, on_record)
    if (found := finished(folder)) is not None:
        return found
    with locked(folder / "lock"):
        if (found := finished(folder)) is not None:  # by another process
            return found
        encoder = _simclr(spec, data, settings, recipe, folder, on_record)
        encoder.save(folder / DONE, force=True)  # a damaged one is replaced
        for path in (*map(folder.joinpath, CHECKPOINTS), *(folder / STAGES).glob("*")):
            path.unlink(missing_ok=True)  # the way is not needed any more
    return encoder


def finished(folder: Path) -> Encoder | None:
    """The encoder of a stage's folder, which may be read-only; None for none or a damaged one."""
    done = folder / DONE
    try:
        return Encoder.load(done) if done.exists() else None
    except BadInput:
        if done.is_symlink() or not done.is_file():
            raise  # not of our making, so not to be replaced
        return None


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
