"""The scikit-learn estimator itself: its parameters, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import unique_labels
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from ..auditing import Audit
from ..auditing.sampling import Reviewed
from ..backbones import Patches
from ..data import IGNORE, BadInput, Data
from ..data.readers import Schema
from ..encoders.encoder import Encoder
from ..engine import History, Recipe, Record, Trainer
from ..engine.recipe import check_held_out
from ..method import Method, create
from . import audits, files, predicting
from .inputs import check_annotations, check_groups, check_training, check_weights
from .training import train


class Classifier(ClassifierMixin, BaseEstimator):
    """A classifier that survives wrong labels, and knows which ones they are.

    A scikit-learn estimator. Parameters left at None are chosen by the kind of data, as
    in `ytilde fit`. In every method X is features [N, D], images [N, C, H, W] (uint8, or float in
    [0, 1]), a sparse matrix, or a DataFrame, as it is: numbers with gaps, categories, dates, one
    column of texts, or image files. y are ints or strings, one a row (-1 is a class like any other,
    as scikit-learn has it) or one per pixel (-1 = ignore).

    Args:
        method: a name (see `list_methods()`), an unbuilt Method, or "auto": the default (of vectors
            "ensemble"), or one of a short list that predicts held-out noisy labels clearly better
            (`race_` has them).
        backbone: a name, "auto", or your own nn.Module that returns features. On a CPU, where the
            network would take pictures more than a minute, auto is "patches": see docs/pictures.md.
        epochs: passes over the training rows.
        batch_size: rows per step.
        optimizer: "sgd" (with momentum), "adam", "adamw" or "muon" (convolutions by Muon,
            the rest by AdamW).
        lr: initial learning rate.
        pretrained_lr: the rate of an encoder's weights and of your own module's, as a fraction of
            lr; 0 freezes them.
        momentum: of SGD; beta1 of Adam.
        nesterov: is SGD's momentum Nesterov's?
        eps: Adam's epsilon.
        weight_decay: how strongly weights shrink towards 0.
        schedule: of the learning rate: "constant", "cosine", "step:0.5,0.75", "linear:0.4",
            "linear_beta:0.4" or "trapezoid:0.1,0.4" (rises, stays, falls); times are fractions of
            training.
        augment: "none", or parts joined by +, such as "crop+flip"; features: "jitter0.1".
        init: first weights: "own" (each network's rule) or "keras" (Glorot's, biases 0).
        standardise: inputs to mean 0 and sd 1; False: as they are, images in [0, 1].
        precision: "float32" or "bfloat16"; "auto" is bfloat16 on CUDA only.
        ema: decay of the moving average of the weights; 0: no average.
        clip: maximum gradient norm of a parameter group; 0: no clipping.
        val: the fraction of the rows to hold out as noisy validation, or a whole number of rows of
            each observed class; "auto": a tenth with 1,000 rows or more, otherwise nothing.
        keep: which epoch's model to keep: "last", "best" by noisy validation accuracy, or
            "best_nll"; None: the best if at least 100 labels are held out, else the last.
        patience: stop after this many epochs without better noisy validation; 0: never.
        balance: draw every observed class equally often.
        workers: processes that read data too large for memory.
        random_state: seed for every random draw that has no seed of its own.
        split_seed: seed for the choice of the validation rows.
        init_seed: seed for the initial weights.
        order_seed: seed for the order of the rows and every other draw in training.
        device: "auto", "cpu", "cuda", "cuda:1".
        graph: on CUDA, capture the step as one CUDA graph.
        compile: fuse the networks with torch.compile: slower to start, then faster.
        devices: number of GPUs (or CPU processes) that train together, with the result of one; a
            script that uses them needs `if __name__ == "__main__":`.
        encoder: a file made by `ytilde pretrain`, from which the networks start.
        pretrain: make an encoder first, e.g. "simclr:epochs=100".

    Example:
        >>> X = np.random.default_rng(0).normal(size=(80, 3))
        >>> y = np.where(X[:, 0] > 0, "dog", "cat")
        >>> clf = Classifier("ce", "mlp:width=16,depth=1", epochs=20, batch_size=20, lr=0.01)
        >>> clf.fit(X, y).score(X, y) > 0.9
        True
        >>> clf.predict_proba(X).shape, clf.transition_matrix(X).shape
        ((80, 2), (80, 2, 2))
    """

    classes_: NDArray[Any]  # this and all below: what a fit leaves
    shape_: tuple[int, ...]  # of one row
    n_features_in_: int
    schema_: Schema | None  # how a table became rows
    double_: bool  # are the features float64?
    recipe_: Recipe
    encoder_: Patches | None  # what turns pictures into what the method sees
    method_: Method
    history_: History
    race_: list[Record]  # what "auto" saw
    interrupted_: bool
    _backbone_: str | nn.Module
    _class_transition_: Tensor

    def __init__(
        self,
        method: str | Method = "second_opinion",
        backbone: str | nn.Module = "auto",
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        optimizer: str | None = None,
        lr: float | None = None,
        pretrained_lr: float = 1.0,
        momentum: float | None = None,
        nesterov: bool = True,
        eps: float = 1e-8,
        weight_decay: float | None = None,
        schedule: str | None = None,
        augment: str | None = None,
        init: str = "own",
        standardise: bool = True,
        precision: str = "auto",
        ema: float = 0.0,
        clip: float = 0.0,
        val: float | str = "auto",
        keep: str | None = None,
        patience: int = 0,
        balance: bool = False,
        workers: int = 2,
        random_state: int | np.random.RandomState | None = 0,
        split_seed: int | None = None,
        init_seed: int | None = None,
        order_seed: int | None = None,
        device: str = "auto",
        graph: bool = True,
        compile: bool = False,
        devices: int = 1,
        encoder: str | Path | None = None,
        pretrain: str | None = None,
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.pretrained_lr = pretrained_lr
        self.momentum = momentum
        self.nesterov = nesterov
        self.eps = eps
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.augment = augment
        self.init = init
        self.standardise = standardise
        self.precision = precision
        self.ema = ema
        self.clip = clip
        self.val = val
        self.keep = keep
        self.patience = patience
        self.balance = balance
        self.workers = workers
        self.random_state = random_state
        self.split_seed = split_seed
        self.init_seed = init_seed
        self.order_seed = order_seed
        self.device = device
        self.graph = graph
        self.compile = compile
        self.devices = devices
        self.encoder = encoder
        self.pretrain = pretrain

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def set_params(self, **params: Any) -> Classifier:
        """Set parameters (scikit-learn's protocol).

        Args:
            params: by name; `method__tau=0.5` sets a field of the method, a name or not.
        """
        method = params.get("method", self.method)
        if isinstance(method, str) and any(name.startswith("method__") for name in params):
            params["method"] = create(method)
        return super().set_params(**params)

    # ---- fitting ------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        annotations: Any = None,
        groups: ArrayLike | None = None,
    ) -> Classifier:
        """Train on labels that may be wrong. Ctrl-C keeps the model of the last whole epoch.

        Args:
            X: the inputs.
            y: the observed labels.
            sample_weight: how often each row is drawn, relative to the others.
            annotations: instead of y, the votes of several annotators: a matrix [N, annotators], -1
                or NaN where there is none, or a table (task, worker, label) whose tasks are rows of
                X, or the index of a DataFrame. The method "crowd" learns from the votes, all others
                from their consensus.
            groups: one a row: rows of one group are never split between training and validation.

        Returns:
            This estimator, fitted.
        """
        votes = check_annotations(X, y, annotations)
        if votes:
            y = votes.consensus
        x, given, schema = check_training(self, X, y)
        classes = unique_labels(given) if given.ndim == 1 else np.unique(given[given != IGNORE])
        classes = votes.classes if votes else classes
        if len(classes) < 2:
            (one,) = classes.tolist() or [None]
            raise BadInput(f"y holds one class only ({one!r}); a classifier needs at least two")
        labels = torch.from_numpy(np.searchsorted(classes, given))
        if given.ndim > 1:
            labels[torch.from_numpy(given == IGNORE)] = IGNORE
        names, scale = tuple(str(c) for c in classes), schema.one_scale if schema else (0, 0)
        data = Data(x, labels, len(classes), names=names, one_scale=scale)
        data = votes.beside(data) if votes else data
        data = replace(data, groups=check_groups(groups, len(data)))
        weights = check_weights(sample_weight, len(data))
        self.fit_data(data, weights=weights, schema=schema)
        self.classes_ = classes
        if schema:
            self.n_features_in_ = X.shape[1]  # of the table; a category has many inputs
        return self

    def fit_data(
        self,
        data: Data,
        *,
        weights: Tensor | None = None,
        recipe: Recipe | None = None,
        schema: Schema | None = None,
        encoder: Encoder | None = None,
        answers: dict[str, NDArray[Any]] | None = None,
        on_record: Callable[[Record], None] = lambda record: None,
        **options: Any,
    ) -> Trainer | None:
        """Fit on a Data (which may be lazy).

        Args:
            data: the rows, with labels 0 .. K - 1.
            weights: how often each row is drawn, relative to the others, [N].
            recipe: in the place of the one that the parameters make; it has a seed for each stream.
            schema: how a table became this data; tables are then read alike, and files tell it.
            encoder: what the file `self.encoder` holds, where it has been read already.
            answers: gets what the fitted model says of the rows it was trained on, which is
                computed anyway: "probs" [N, K], and "unreadable_rows" [N]; nothing where pixels
                have labels.
            on_record: called with the record of every epoch.
            options: those of `fit_method`.

        Returns:
            The trainer, or None if Ctrl-C ended the fit early.
        """
        if recipe is None:
            check_held_out(vars(self))
        trainer = train(
            self,
            data,
            weights=weights,
            recipe=recipe,
            schema=schema,
            encoder=encoder,
            on_record=on_record,
            **options,
        )
        self._class_transition_ = predicting.class_transition(self, data, answers)
        return trainer

    @property
    def backbone_(self) -> str:
        """The network that was trained, by its name; of one of the user's own, as it is printed."""
        return str(self._backbone_)

    def annotator_transition(self) -> NDArray[np.float32]:
        """T of each annotator, T[a, i, j] = P(annotator a says j | true i), as "crowd" learnt it.

        Returns:
            [A, K, K], in the order of `annotators_`; rows sum to 1.
        """
        check_is_fitted(self)
        matrices: Any = getattr(self.method_, "annotator_transition", None)
        if not len(self.annotators_) or matrices is None:
            raise BadInput(
                'only method="crowd", fitted with annotations, learns a T for each annotator; '
                "ytilde.annotators.find_consensus tells what the votes alone say"
            )
        with torch.no_grad():
            return matrices().float().cpu().numpy()

    # ---- predicting ---------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """The clean posterior.

        Args:
            X: the inputs.

        Returns:
            [N, K]; columns in the order of `classes_`.
        """
        return predicting.map_rows(self, lambda clf, batch: clf.method_.predict_proba(batch.x), X)

    def predict_data(self, data: Data) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The clean posteriors of a Data [N, K], and which rows could not be read [N]."""
        check_is_fitted(self)
        predicting.check_shape(self, data)
        probs, unreadable_rows = predicting.posteriors(self, data)
        return probs.float().cpu().numpy(), unreadable_rows

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row, as in the y that was given.

        Args:
            X: the inputs.

        Returns:
            [N], or [N, H, W] for pixels.
        """
        best = self.predict_proba(X).argmax(-1)
        return self.classes_[best]

    def noisy_proba(self, X: Any) -> NDArray[np.float32]:
        """The posterior of the label that would be observed, noise included.

        Args:
            X: the inputs.

        Returns:
            [N, K]; columns in the order of `classes_`.
        """
        return predicting.map_rows(self, lambda clf, batch: clf.method_.noisy_proba(batch.x), X)

    def transition_matrix(self, X: Any) -> NDArray[np.float32]:
        """T[n, i, j] = P(given j | true i, x_n).

        A method without a T of its own gets the class-level one that its predictions and the
        training labels imply (the same for every row).

        Args:
            X: the inputs.

        Returns:
            [N, K, K]; rows sum to 1.
        """
        return predicting.map_rows(self, predicting.transition, X)

    def uncertainty(self, X: Any) -> NDArray[np.float32]:
        """Aleatoric uncertainty: how far the label is from being determined.

        The head's predicted variance, or the entropy of the observed label where it has none.

        Args:
            X: the inputs.

        Returns:
            [N], or [N, H, W] for pixels.
        """
        return predicting.map_rows(self, predicting.uncertainty, X)

    # ---- auditing -----------------------------------------------------------------------------

    def audit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        folds: int = 5,
        checked: Mapping[int, Any] | None = None,
        annotations: Any = None,
        groups: ArrayLike | None = None,
    ) -> Audit:
        """Which labels are wrong, and what they should be.

        Args:
            X: the inputs.
            y: their labels, which are judged.
            annotations: instead of y, the votes of several annotators, as for `fit`; what is judged
                is their consensus, and each annotator.
            folds: number of fits of this estimator; each label is judged by one that never saw it.
                0: this fitted model judges, which is cheaper, but labels that it was trained on
                look better.
            checked: true labels of rows that somebody looked at, {row: label}, drawn at random; the
                count of wrong labels then holds whatever the model is.
            groups: one a row: rows of one group are judged by one model, which saw none of them.

        Returns:
            The verdict on every label; `to_html` writes the report.
        """
        return audits.audit_rows(self, X, y, folds, checked, annotations, groups)

    def audit_data(
        self,
        data: Data,
        folds: int = 5,
        on_record: Callable[[Record], None] = lambda record: None,
        keep: Path | None = None,
        encoder: Encoder | None = None,
        checked: Mapping[int, int] | Reviewed | None = None,
        folder: Path | None = None,
        on_start: Callable[[int], None] = lambda left: None,
        on_step: Callable[[Record], None] | None = None,
    ) -> Audit:
        """The audit of a Data (which may be lazy); images that cannot be read are left out.

        Args:
            data: the rows, whose labels are judged.
            folds: as for `audit`.
            on_record: called with the record of every epoch; its stage names the fold.
            keep: a file for what these fits say, so that the next audit of the same needs none.
            encoder: what the file `self.encoder` holds, where it has been read already.
            checked: true classes of rows drawn at random, or the decisions of a review.
            folder: of a run, which keeps each fold as it ends, and the checkpoints of the one in
                training: an audit that was stopped goes on there, to the same verdict.
            on_start: hears how many folds are left to train, before the first is.
            on_step: called within an epoch, now and then, with its "share" that is done.

        Returns:
            The verdict on every label.
        """
        more = (keep, encoder, checked, folder, on_start, on_step)
        return audits.audit_data(self, data, folds, on_record, *more)

    # ---- files --------------------------------------------------------------------------------

    def save(self, path: str | Path, force: bool = False) -> None:
        """One safetensors file with a JSON header; no pickle.

        Args:
            path: of the file.
            force: replace a file that is no classifier.
        """
        check_is_fitted(self)
        files.save(self, path, force)

    @classmethod
    def load(cls, path: str | Path, backbone: nn.Module | None = None) -> Classifier:
        """A classifier that `save` wrote.

        Args:
            path: of the file.
            backbone: the network that it was trained with, where that was a module of your own.
        """
        return files.load(cls, path, backbone)
