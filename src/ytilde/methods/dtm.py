"""DTM: a diffusion model gives each instance its transition matrix (NeurIPS 2024 submission).

Fidelity: algorithm 3. Features without labels, k-means on them, a matrix for each group, a
diffusion over their weights W given the features (algorithms 1 and 2), and a classifier trained
with T(x)^T f(x) (eq. 7). No code was published, and the paper leaves open or gets wrong:
(1) Its normaliser in section 3.4 sums over columns; the text and eq. 7 need rows. The learnable
diagonal is one redundant number a row and is left out.
(2) How a group's matrix is found. VolMinNet for every group alone has too few labels; here one
VolMinNet on the features, cross-fitted so that no posterior has seen its own label, and then each
group's T by EM with the common T as a prior worth `kappa` labels a row.
(3) Its schedule (linear to 0.02 in 10 steps) leaves 95 % of W in place, so that N(0, I) is no
place to start from. Default: cosine, standardised W, x0 predicted, DDIM. The paper to the letter
is schedule="paper", predict="eps", standardise=False, eta=1, denoiser="unet"; start="matched" mends
its start.
(4) T(x) is the mean over `samples` of T, not T of the mean, and is fixed while f is trained
(resample="epoch": drawn anew whenever a row comes up).
(5) SimCLR's features are blind by design to what colour and place have to do with the noise: groups
and diffusion may go by the pixels' principal components instead (`group_features`).
(6) Above 20 classes a W has too many entries for its labels: what is diffused (with the MLP) are
the first 128 principal coefficients of the groups' W.
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..data import IGNORE, Batch, Data, Spec, StepInfo
from ..data.fingerprint import fingerprint
from ..diffusion import DENOISERS, PCA, Diffusion, Prediction, Schedule, ScheduleKind, Start
from ..encoders.clusters import assign, kmeans
from ..encoders.features import Components, Features
from ..engine import Recipe, Trainer
from ..losses import mean, weighted_mean
from ..method import Method, register, view
from ..transition import SigmoidT, forward_nll, forward_nll_log, sigmoid_rows, volume
from ..transition.groups import sharpened, weights_of
from ._shared import (
    FeatureKind,
    encoder_features,
    from_scratch,
    simclr_of,
    stage_epochs,
    takes_raw,
)

Ablation = Literal["nothing", "pretraining", "clustering", "diffusion", "denoising"]
FOLDS = 5
COMPONENTS = 32  # of the pixels
ENOUGH_ROWS = 10_000  # to find these components
LARGEST_TABLE = 2**29  # bytes of T for all training rows; above it they are sampled batch by batch
MANY_CLASSES = 20  # from here on W is diffused as coefficients
RANK = 128


@register("dtm")
@dataclass(eq=False, repr=False)
class DTM(Method):
    """Forward correction with T(x) from a diffusion over transition matrices."""

    without: Ablation = "nothing"  # an ablation; denoising: by regression instead
    features: FeatureKind = "auto"  # encoder: the given one, or SimCLR's; raw: the inputs
    group_features: Literal["features", "pixels", "both"] = "features"  # that T(x) depends on
    init: Literal["encoder", "scratch"] = "encoder"  # what the classifier starts from
    pretrain_epochs: int = 200  # of SimCLR, where no encoder is given
    encoder_seed: int = 0  # SimCLR's own seed, so that runs with other seeds share an encoder
    clusters: int = 10  # groups a class
    kappa: float = 20.0  # labels that the common T counts for, in each row of a group's
    lam: float = 1e-4  # weight of the volume of the common T
    t_epochs: float = 0.2  # epochs for the common T, as a share of the recipe's
    diffusion_epochs: float = 2.0  # epochs for the diffusion, as a share of the recipe's
    schedule: ScheduleKind = "cosine"  # of the noise of the diffusion
    steps: int = 10  # M
    predict: Prediction = "x0"  # what the denoiser gives
    standardise: bool = True  # diffuse W with mean 0 and sd 1
    eta: float = 0.0  # 0: DDIM, 1: ancestral sampling (algorithm 2)
    start: Start = "normal"  # W at step M: N(0, I); matched: the data's own there
    denoiser: Literal["mlp", "rows", "unet"] = "mlp"  # rows: a transformer
    samples: int = 8  # draws of W(x) that T(x) is the mean of
    resample: Literal["never", "epoch"] = "never"  # epoch: new draws of T(x) in every epoch

    helper_stages = (*Method.helper_stages, "common", "diffusion")
    ranges = (
        "pretrain_epochs >= 1, clusters >= 1, kappa >= 0, lam >= 0, t_epochs >= 0, "
        "diffusion_epochs >= 0, steps >= 1, 0 <= eta <= 1, samples >= 1"
    )
    pixels = False

    def pretraining(self, shape: tuple[int, ...]) -> str | None:
        return None if self.raw(shape) or self.without == "pretraining" else simclr_of(self)

    def raw(self, shape: tuple[int, ...]) -> bool:
        """Are the features the inputs themselves? Without pre-training they are a classifier's."""
        return takes_raw(self, shape) and self.without != "pretraining"

    def build(self, spec: Spec) -> None:
        if self.init == "scratch" or self.without == "pretraining":
            self.spec = from_scratch(spec)
        else:
            self.spec = spec
        k, n = spec.num_classes, spec.num_train
        self.net = self.new_net()
        self.encoder = Features(spec, self.raw(spec.shape))
        self.groups = 1 if self.without == "clustering" else min(self.clusters * k, -(-n // 5))
        self.common = CrossFit(self.encoder.dim, k, n, hidden=128 if self.encoder.raw else 0)
        self.place_dim = 0 if self.group_features == "pixels" else self.encoder.dim
        if self.group_features != "features":
            self.components = Components(spec.shape, COMPONENTS)
            self.place_dim += self.components.dim
        self.centres: Tensor
        self.W: Tensor
        self.group: Tensor
        self.register_buffer("centres", torch.zeros(self.groups, self.place_dim))
        self.register_buffer("W", torch.zeros(self.groups, k, k))
        self.register_buffer("group", torch.zeros(n, dtype=torch.int64))
        # until it is learnt, T(x) is a flat one that nothing should be judged by
        self.has_T: Tensor
        self.register_buffer("has_T", torch.tensor(False))
        self.build_diffusion(spec)

    def build_diffusion(self, spec: Spec) -> None:
        k, n = spec.num_classes, spec.num_train
        self.pca: PCA | None = None
        shape: tuple[int, ...] = (k, k)
        if k > MANY_CLASSES and self.denoiser == "mlp":
            self.pca = PCA(shape, max(1, min(self.groups - 1, RANK)))
            shape = (self.pca.rank,)
            self.coefficients: Tensor
            self.register_buffer("coefficients", torch.zeros(self.groups, self.pca.rank))
        own = {"width": 128, "blocks": 2} if self.denoiser == "mlp" else {}
        network = DENOISERS[self.denoiser](shape, self.place_dim, **own)
        schedule = Schedule(self.schedule, self.steps)
        self.diffusion = Diffusion(
            network,
            schedule,
            shape,
            self.place_dim,
            predict=self.predict,
            standardise=self.standardise,
            start=self.start,
        )
        self.noise: Tensor
        self.register_buffer("noise", self.diffusion.draws(self.samples, spec.generator))
        # T(x) of the training rows: made before the classifier's stage, never saved
        lazy = self.without == "diffusion" or self.resample == "epoch"
        lazy = lazy or 4 * n * k * k > LARGEST_TABLE
        self.table: Tensor
        self.register_buffer("table", torch.zeros(0 if lazy else n, k, k), persistent=False)

    # ---- the stages ---------------------------------------------------------------------------

    def fit(self, data: Data, trainer: Trainer) -> None:
        if self.without == "pretraining":
            self.learn_features(data, trainer)
        h = encoder_features(self.encoder, data, trainer)
        rows = Data(h, data.y, data.num_classes)
        self.learn_common(rows, trainer)
        if self.group_features != "features":
            rows = Data(self.places(data, h, trainer), data.y, data.num_classes)
        self.learn_groups(rows, trainer)
        if self.without != "diffusion":
            self.learn_diffusion(rows, trainer)
        self.has_T.fill_(True)
        if len(self.table):
            self.table.copy_(trainer.map(lambda batch: self.T_of(batch.x), rows))
        trainer.train("main", self.loss, list(self.net.parameters()), data)

    def learn_features(self, data: Data, trainer: Trainer) -> None:
        """The ablation: features of a classifier of the noisy labels, in place of SimCLR's."""
        start = {name: value.clone() for name, value in self.net.state_dict().items()}
        best = replace(trainer.recipe, keep="best_nll")
        epochs, params = stage_epochs(best.epochs, 0.2), list(self.net.parameters())
        trainer.train("warm_up", super().loss, params, data, epochs=epochs, recipe=best)
        self.encoder.backbone.load_state_dict(self.net.backbone.state_dict())
        self.net.load_state_dict(start)

    def learn_common(self, rows: Data, trainer: Trainer) -> None:
        """One VolMinNet on the features; `common.early` sums up its held-out posteriors."""
        common = self.common
        common.start(cast(Tensor, rows.x), trainer.recipe)
        heads = [p for name, p in common.named_parameters() if name != "transition.W"]
        T = {"params": [common.transition.W], "lr": 0.01, "optimizer": "adam", "weight_decay": 0.0}
        recipe = stage_recipe(trainer.recipe, lr=2e-3, weight_decay=0.1)
        epochs = stage_epochs(recipe.epochs, self.t_epochs)
        options: Any = {"epochs": epochs, "recipe": recipe, "validate": False}
        for _ in trainer.epochs("common", self.common_loss, [*heads, T], rows, **options):
            common.early += common.held_out(cast(Tensor, rows.x))

    def common_loss(self, batch: Batch, step: StepInfo) -> Tensor:
        return self.common.loss(batch.x, batch.y, batch.index, self.lam)

    def places(self, data: Data, h: Tensor, trainer: Trainer) -> Tensor:
        """What T(x) depends on, of all rows [N, D], once the pixels' components are found."""

        def solve() -> Tensor:
            generator = trainer.recipe.generator("init", "components")
            some = torch.randperm(len(data), generator=generator)[:ENOUGH_ROWS].sort().values
            flat = trainer.map(lambda batch: self.components.flat(batch.x), data.rows(some))
            return Components.solve(flat, self.components.dim)

        self.components.take(trainer.cached("components", [fingerprint(data)], solve))
        z = trainer.map(lambda batch: self.components(batch.x), data)
        return self.beside(h, z)

    def beside(self, h: Tensor, z: Tensor) -> Tensor:
        """Features [B, D] and components of the pixels, both of length one, or the latter alone."""
        if self.group_features == "pixels":
            return z
        return torch.cat([h / math.sqrt(h.shape[-1]) if self.encoder.raw else h, z], -1)

    def place(self, x: Tensor) -> Tensor:
        """What T(x) depends on [B, D]."""
        if self.group_features == "features":
            return self.encoder(x)
        return self.beside(self.encoder(x), self.components(x))

    def learn_groups(self, rows: Data, trainer: Trainer) -> None:
        """k-means, and each group's W from its rows' labels."""
        h, y = cast(Tensor, rows.x), rows.y.to(trainer.device)
        generator = trainer.recipe.generator("init", "clusters")
        inputs = [h, self.groups]
        centres = trainer.cached("groups", inputs, lambda: kmeans(h, self.groups, generator))
        self.centres.copy_(centres)
        self.group.copy_(assign(h, self.centres))
        start = self.common.transition.T().detach()
        early = self.common.early
        _, T = sharpened(early, y, self.group, self.groups, start, self.kappa)
        self.W.copy_(weights_of(T))

    def learn_diffusion(self, rows: Data, trainer: Trainer) -> None:
        if self.pca is not None:
            self.pca.fit(self.W)
            self.coefficients.copy_(self.pca.encode(self.W))
        self.diffusion.measure(self.targets(self.group), cast(Tensor, rows.x))
        recipe = stage_recipe(trainer.recipe, lr=1e-3, ema=0.99, clip=1.0)
        epochs = stage_epochs(recipe.epochs, self.diffusion_epochs)
        params = list(self.diffusion.parameters())
        options: Any = {"epochs": epochs, "recipe": recipe, "validate": False}
        trainer.train("diffusion", self.diffusion_loss, params, rows, **options)

    def targets(self, group: Tensor) -> Tensor:
        """What is diffused for rows of these groups: W, or its coefficients."""
        return (self.W if self.pca is None else self.coefficients)[group]

    def diffusion_loss(self, batch: Batch, step: StepInfo) -> Tensor:
        w = self.targets(self.group[batch.index])
        if self.without == "denoising":
            return self.diffusion.regression(w, batch.x).mean()
        return self.diffusion.loss(w, batch.x, step.generator).mean()

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        """Eq. 7, in log space."""
        x, y = view(batch, step)
        return mean(forward_nll(self.net.log_probs(x), self.training_T(batch, step), y), y)

    # ---- T(x) ---------------------------------------------------------------------------------

    def training_T(self, batch: Batch, step: StepInfo) -> Tensor:
        """T(x) of training rows, for the classifier's stage."""
        if self.without == "diffusion":
            return sigmoid_rows(self.W[self.group[batch.index]])
        if len(self.table):
            return self.table[batch.index]
        anew = step.generator if self.resample == "epoch" else None
        return self.T_of(self.place(batch.x), anew)

    def draws_of(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Samples of T for places h [B, D]: [B, n, K, K].

        The same noise for every row, always; with a generator each row has its own, once.
        """
        if self.without == "diffusion":
            return sigmoid_rows(self.W[assign(h, self.centres)])[:, None]
        if self.without == "denoising":
            w = self.diffusion.regress(h)[:, None]
        else:
            noise = self.noise if generator is None else None
            options: Any = {"eta": self.eta, "noise": noise, "generator": generator}
            w = self.diffusion.sample(h, self.samples, **options)
        return sigmoid_rows(w if self.pca is None else self.pca.decode(w))

    @torch.no_grad()
    def T_of(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.draws_of(h, generator).mean(1)

    def transition(self, batch: Batch) -> Tensor:
        return self.T_of(self.place(batch.x))

    def noisy_proba(self, x: Tensor) -> Tensor:
        """p @ T(x), and p itself while there is no T: the warm-up is then judged by its own fit."""
        return super().noisy_proba(x) if self.has_T else self.predict_proba(x)

    @torch.no_grad()
    def spread(self, x: Tensor) -> Tensor:
        """How unsure T(x) is: the sd of its entries over the samples, [B, K, K]."""
        return self.draws_of(self.place(x)).std(1, correction=0)


class CrossFit(nn.Module):
    """VolMinNet (Li et al., ICML 2021) on features: FOLDS classifiers that share one T.

    Each leaves out a fifth of the rows, whose posteriors it then gives: a network that has seen a
    label, right or wrong, believes it, and a T read off such posteriors is too clean.
    """

    shift: Tensor
    scale: Tensor
    fold: Tensor
    early: Tensor

    def __init__(self, dim: int, num_classes: int, rows: int, hidden: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        self.register_buffer("fold", torch.zeros(rows, dtype=torch.int64))
        self.register_buffer("early", torch.zeros(rows, num_classes))  # summed over the epochs
        widths = [dim, hidden, num_classes] if hidden else [dim, num_classes]
        sizes = [(FOLDS, a, b) for a, b in itertools.pairwise(widths)]
        self.layers = nn.ParameterList(torch.randn(s) / math.sqrt(s[1]) for s in sizes)
        self.biases = nn.ParameterList(torch.zeros(FOLDS, 1, s[2]) for s in sizes)
        self.transition = SigmoidT(num_classes)

    def start(self, h: Tensor, recipe: Recipe) -> None:
        order = torch.randperm(len(h), generator=recipe.generator("split", "folds"))
        self.fold.copy_(order % FOLDS)
        self.shift.copy_(h.mean(0))
        self.scale.copy_(h.std(0, correction=0).clamp_min(1e-3))
        self.early.zero_()

    def log_probs(self, h: Tensor) -> Tensor:
        """[FOLDS, B, K]."""
        with torch.autocast(h.device.type, enabled=False):
            z = ((h.float() - self.shift) / self.scale).expand(FOLDS, *h.shape)
            for k, (A, b) in enumerate(zip(self.layers, self.biases, strict=True)):
                z = torch.baddbmm(b, z.relu() if k else z, A)
            return z.log_softmax(-1)

    def loss(self, h: Tensor, y: Tensor, index: Tensor, lam: float) -> Tensor:
        log_T = self.transition.log_T()
        nll = forward_nll_log(self.log_probs(h), log_T, y.expand(FOLDS, -1))
        used = self.fold[index] != torch.arange(FOLDS, device=h.device)[:, None]
        return weighted_mean(nll, (used & (y != IGNORE)).float()) + lam * volume(log_T.exp())

    @torch.no_grad()
    def held_out(self, h: Tensor) -> Tensor:
        """Posteriors [N, K] of all rows, each by the classifier that has not seen it."""
        rows = torch.arange(len(self.fold), device=self.fold.device)
        parts = [
            self.log_probs(h[part])[self.fold[part], part - part[0]] for part in rows.split(8192)
        ]
        return torch.cat(parts).exp()


def stage_recipe(recipe: Recipe, **own: Any) -> Recipe:
    """For a small network on features: Adam with a cosine, no augmentation."""
    plain: dict[str, Any] = {"optimizer": "adamw", "momentum": 0.9, "weight_decay": 0.0}
    plain |= {"batch_size": max(256, recipe.batch_size)}
    plain |= {"schedule": "cosine", "augment": "none", "ema": 0.0, "clip": 0.0, "keep": "last"}
    return replace(recipe, **(plain | {"patience": 0, "balance": False} | own))
