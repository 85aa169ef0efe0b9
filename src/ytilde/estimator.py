"""Classifier: every method as a scikit-learn estimator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from pandas.api.types import infer_dtype
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from . import checkpoint
from .auditing import NOTE_OUT_OF_FOLD, Audit, audit
from .auditing.crossfit import Answers, FoldFit, kept_or_made, out_of_fold, single_rows
from .backbones import without_weights
from .data import IGNORE, BadInput, Batch, Data, Rows, few
from .data.images import row_name, without_unreadable
from .data.readers import Schema, as_array, as_inputs, fingerprint, label_array, read_features
from .encoders.encoder import Encoder
from .engine import (
    REFIT_FIELDS,
    History,
    Recipe,
    Record,
    Trainer,
    choose_device,
    default_recipe,
    parallel,
    to_device,
)
from .errors import is_out_of_memory
from .fitting import backbone_name, fit_method, make_spec
from .hashing import hash_of
from .method import Method, create, unseen
from .outputs import check_replaceable
from .transition import confident_joint, validate_transition
from .tuning import SHORT_LIST, choose_method, tag_trial

KEPT_TYPES = [np.float64, np.float32]  # of a table, until it is known what it needs
ONE_LABEL = "an audit needs one label a row; pixel labels are not audited yet"


class Classifier(ClassifierMixin, BaseEstimator):
    """A classifier that survives wrong labels, and knows which ones they are.

    A scikit-learn estimator. What is left at None is chosen by the kind of data, as in
    `ytilde fit`. In every method X is features [N, D], images [N, C, H, W] (uint8, or float in
    [0, 1]), or a DataFrame, whose text columns are categories, or image files. y are ints or
    strings, one a row (-1 is a class like any other, as scikit-learn has it) or one a pixel
    (-1 = ignore).

    Args:
        method: a name (see `list_methods()`), an unbuilt Method, or "auto": the best of a short
            list by noisy validation (`race_` is what was seen).
        backbone: a name, "auto", or your own nn.Module that returns features.
        epochs: passes over the training rows.
        batch_size: rows in one step.
        optimizer: "sgd" (with Nesterov momentum), "adam" or "adamw".
        lr: learning rate at the start.
        pretrained_lr: the rate of an encoder's weights and of your own module's, as a share of lr;
            0 freezes them.
        momentum: SGD's; Adam's beta1.
        weight_decay: pull of the weights towards 0.
        schedule: of the rate: "constant", "cosine", "step:0.5,0.75", "linear:0.4" or
            "linear_beta:0.4"; times are fractions of training.
        augment: "none", or parts joined by +, such as "crop+flip"; features: "jitter0.1".
        precision: "float32" or "bfloat16"; "auto" is bfloat16 on CUDA only.
        ema: decay of the weight average; 0: none.
        clip: largest gradient norm of a parameter group; 0: no clipping.
        val: the share of the rows held out as noisy validation; "auto": a tenth from 1,000 rows
            on, nothing below.
        keep: which epoch's model: "last", "best" by noisy validation accuracy, or "best_nll"; None:
            the best where 100 labels or more are held out, else the last.
        patience: stop after so many epochs without a better noisy validation; 0: never.
        balance: draw every observed class equally often.
        workers: processes that read data that does not fit in memory.
        random_state: seed of every draw that has no seed of its own.
        split_seed: of the choice of the validation rows.
        init_seed: of the initial weights.
        order_seed: of the order of the rows and every other draw in training.
        device: "auto", "cpu", "cuda", "cuda:1".
        graph: on CUDA: capture the step as one CUDA graph.
        compile: fuse the networks by torch.compile: slower to start, then faster.
        devices: so many GPUs (or CPU processes) train together, with the result of one; a script
            that uses them needs `if __name__ == "__main__":`.
        encoder: a file made by `ytilde pretrain`, from which the networks start.
        pretrain: make an encoder first, as in "simclr:epochs=100".

    Example:
        >>> X = np.random.default_rng(0).normal(size=(80, 3))
        >>> y = np.where(X[:, 0] > 0, "dog", "cat")
        >>> clf = Classifier("ce", "mlp:width=16,depth=1", epochs=20, batch_size=20, lr=0.01)
        >>> clf.fit(X, y).score(X, y) > 0.9
        True
        >>> clf.predict_proba(X).shape, clf.transition_matrix(X).shape
        ((80, 2), (80, 2, 2))
    """

    def __init__(
        self,
        method: str | Method = "elr",
        backbone: str | nn.Module = "auto",
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        optimizer: str | None = None,
        lr: float | None = None,
        pretrained_lr: float = 1.0,
        momentum: float | None = None,
        weight_decay: float | None = None,
        schedule: str | None = None,
        augment: str | None = None,
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
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.augment = augment
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

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Classifier:
        """Train on labels that may be wrong. Ctrl-C keeps the model of the last whole epoch.

        Args:
            X: the inputs.
            y: the observed labels.
            sample_weight: how often each row is drawn, relative to the others.

        Returns:
            This estimator, fitted.
        """
        x, given, schema = self._check_training(X, y)
        classes = unique_labels(given) if given.ndim == 1 else np.unique(given[given != IGNORE])
        if len(classes) < 2:
            raise BadInput(f"y holds one class only ({classes!r}); a classifier needs at least two")
        labels = torch.from_numpy(np.searchsorted(classes, given))
        if given.ndim > 1:
            labels[torch.from_numpy(given == IGNORE)] = IGNORE
        data = Data(x, labels, len(classes), names=tuple(str(c) for c in classes))
        weights = self._check_weights(sample_weight, len(data))
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
            on_record: hears of every epoch.
            options: those of `fit_method`.

        Returns:
            The trainer, or None if Ctrl-C ended the fit early.
        """
        trainer = self._train(data, weights, recipe, schema, encoder, on_record, options)
        self._class_transition_ = self._estimate_transition(data, answers)
        return trainer

    def _train(
        self,
        data: Data,
        weights: Tensor | None,
        recipe: Recipe | None,
        schema: Schema | None,
        encoder: Encoder | None,
        on_record: Callable[[Record], None],
        options: dict[str, Any],
    ) -> Trainer | None:
        """The fit without what follows it: the transition of methods that have none."""
        if not isinstance(self.devices, int | np.integer) or self.devices < 1:
            raise BadInput(f"devices must be a whole number, at least 1, not {self.devices!r}")
        recipe = recipe or self._recipe(data)
        parallel.check_devices(int(self.devices), choose_device(recipe.device))
        self.classes_ = np.asarray(data.names or range(data.num_classes))
        self.shape_, self.n_features_in_ = data.shape, math.prod(data.shape)
        self.schema_ = schema
        first = data.x[torch.arange(1)] if len(data.shape) == 1 else None
        self.double_ = first is not None and first.dtype == torch.float64
        encoder = encoder or self._load_encoder()
        self.recipe_, self._backbone_ = recipe, backbone_name(data, self.backbone, encoder)
        self.history_: History = []

        def record(line: Record) -> None:
            if "race" not in line:
                self.history_.append(line)
            on_record(line)

        options |= {"backbone": self._backbone_, "weights": weights, "on_record": record}
        options |= {"encoder": encoder, "pretrain": self.pretrain}
        self.method_ = self._auto_method(data, options) if self._is_auto() else self._new_method()
        alike = {k: v for k, v in options.items() if k not in ("on_record", "monitor")}
        trainer = None
        try:
            fresh = type(self.method_)(**self.method_.get_params())
            beside = (_fit_beside, fresh, _sent(data), recipe, alike)
            with parallel.spawn_workers(self.devices, *beside):
                trainer = fit_method(self.method_, data, recipe, **options)
            self.history_ = trainer.history
        except KeyboardInterrupt:
            stages = {line["stage"] for line in self.history_} - set(self.method_.helper_stages)
            if not hasattr(self.method_, "spec") or not stages:
                raise  # nothing to keep: no classifier has been trained
            warnings.warn("fit was interrupted: the model of the last whole epoch is kept")
        self.interrupted_ = trainer is None
        self.method_.eval()
        return trainer

    @property
    def backbone_(self) -> str:
        """The network that was trained, by its name; of one of the user's own, as it is printed."""
        return str(self._backbone_)

    def _load_encoder(self) -> Encoder | None:
        return None if self.encoder is None else Encoder.load(self.encoder)

    def _is_auto(self) -> bool:
        return isinstance(self.method, str) and self.method == "auto"

    def _method_name(self) -> str:
        """The method's name; of "auto" the winner's, once there is one."""
        if self._is_auto() and hasattr(self, "method_"):
            return self.method_.name
        return self.method.name if isinstance(self.method, Method) else self.method

    def _auto_method(self, data: Data, options: dict[str, Any]) -> Method:
        """The winner of a race of SHORT_LIST; the options are those of the fit that follows."""
        own = {k: v for k, v in options.items() if k not in ("folder", "on_record", "monitor")}
        own["resume"] = False

        def try_out(method: Method, recipe: Recipe, name: str) -> Trainer:
            shown = tag_trial(name, options["on_record"])
            return fit_method(method, data, recipe, **own, on_record=shown)

        folder, resume = options.get("folder"), options.get("resume", False)
        best, self.race_ = choose_method(SHORT_LIST, create, self.recipe_, try_out, folder, resume)
        return create(best)

    def _new_method(self) -> Method:
        if isinstance(self.method, Method):
            return type(self.method)(**self.method.get_params())
        if not isinstance(self.method, str):
            raise BadInput(f"method must be a name or what create(name) made, not {self.method!r}")
        return create(self.method)

    def _recipe(self, data: Data) -> Recipe:
        own = {name: getattr(self, name) for name in REFIT_FIELDS}
        seed = self.random_state
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        elif isinstance(seed, np.random.RandomState):
            seed = seed.randint(2**31 - 1)
        elif not isinstance(seed, (int, np.integer)):
            raise BadInput(f"random_state must be a whole number or None, not {seed!r}")
        return default_recipe(data.shape, len(data), data.y.dim() > 1, seed=int(seed), **own)

    def _check_training(self, X: Any, y: ArrayLike) -> tuple[Rows, NDArray[Any], Schema | None]:
        x: Rows
        schema = None
        if y is not None:
            _check_labels(y)
        X, y = _plain(X, "X"), _plain(y, "y")
        if _ndim(X) > 2 or _holds_text(X):
            given = np.asarray(y)
            if _holds_text(X):
                validate_data(self, X, skip_check_array=True)  # keeps the names of the columns
                found = read_features(X)
                x, schema = found.data.x, found.schema
            else:
                x = as_images(X)
            if given.shape not in ((len(x),), (len(x), *x.shape[2:])):
                raise BadInput(
                    f"y must hold one label for each of the {len(x)} rows of X (or for each of "
                    f"their pixels), not an array of shape {given.shape}"
                )
            if given.ndim > 1:
                return x, given, schema
        else:
            with _one_sentence():
                table, given = validate_data(self, X, y, dtype=KEPT_TYPES, ensure_min_samples=2)
            x = as_inputs(table, "X")
        with _one_sentence():
            check_classification_targets(given)
        return x, given, schema

    def _check_weights(self, sample_weight: ArrayLike | None, n: int) -> Tensor | None:
        if sample_weight is None:
            return None
        try:
            weights = torch.from_numpy(np.asarray(sample_weight, dtype=np.float64).copy())
        except (TypeError, ValueError):
            raise BadInput("sample_weight must hold numbers, one for each row of X") from None
        if weights.shape != (n,) or (weights < 0).any() or not weights.isfinite().all():
            raise BadInput(f"sample_weight must hold {n} finite numbers that are not negative")
        if weights.sum() <= 0:
            raise BadInput("sample_weight must not be zero everywhere")
        return weights

    # ---- predicting ---------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """The clean posterior.

        Args:
            X: the inputs.

        Returns:
            [N, K]; columns in the order of `classes_`.
        """
        return self._map(lambda batch: self.method_.predict_proba(batch.x), X)

    def predict_data(self, data: Data) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The clean posteriors of a Data [N, K], and which rows could not be read [N]."""
        check_is_fitted(self)
        self._check_shape(data)
        probs, unreadable_rows = self._posteriors(data)
        return probs.float().cpu().numpy(), unreadable_rows

    def _posteriors(self, data: Data) -> tuple[Tensor, NDArray[np.bool_]]:
        trainer = self._trainer()
        probs = trainer.map(lambda batch: self.method_.predict_proba(batch.x), data)
        unread, rows = trainer.feed.unreadable, range(len(data))
        found = np.array([bool(unread) and row_name(data.x, row) in unread for row in rows])
        return probs, found

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
        return self._map(lambda batch: self.method_.noisy_proba(batch.x), X)

    def transition_matrix(self, X: Any) -> NDArray[np.float32]:
        """T[n, i, j] = P(given j | true i, x_n).

        A method without a T of its own gets the class-level one that its predictions and the
        training labels imply (the same for every row).

        Args:
            X: the inputs.

        Returns:
            [N, K, K]; rows sum to 1.
        """

        def of(batch: Batch) -> Tensor:
            T = self.method_.transition(batch)
            T = self._class_transition_.to(batch.x.device) if T is None else T
            return T.expand(len(batch.x), *T.shape[-2:])

        return self._map(of, X)

    def uncertainty(self, X: Any) -> NDArray[np.float32]:
        """Aleatoric uncertainty: how far the label is from being determined.

        The head's predicted variance, or the entropy of the observed label where it has none.

        Args:
            X: the inputs.

        Returns:
            [N], or [N, H, W] for pixels.
        """

        def of(batch: Batch) -> Tensor:
            value = self.method_.uncertainty(batch.x)
            if value is not None:
                return value
            p = self.method_.noisy_proba(batch.x)
            return -torch.special.xlogy(p, p).sum(-1)

        return self._map(of, X)

    def _map(self, fn: Any, X: Any) -> NDArray[np.float32]:
        check_is_fitted(self)
        if not isinstance(X, Data):
            x = self._check_inputs(X)
            X = Data(x, torch.zeros(len(x), dtype=torch.int64), len(self.classes_))
        self._check_shape(X)
        return self._trainer().map(fn, X).float().cpu().numpy()

    def _check_shape(self, data: Data) -> None:
        if data.shape != self.shape_:
            raise BadInput(
                f"the inputs have shape {data.shape}, the training data had {self.shape_}"
            )

    def _trainer(self) -> Trainer:
        return Trainer(self.method_, self.recipe_)

    def _check_inputs(self, X: Any) -> Rows:
        if self.schema_ and isinstance(X, pd.DataFrame):
            found = read_features(X, self.schema_)
            for note in found.notes:
                warnings.warn(note)
            return found.data.x
        X = _plain(X, "X")
        if len(self.shape_) > 1:
            return as_images(X)
        with _one_sentence():
            table = validate_data(self, X, dtype=KEPT_TYPES, reset=False)
        return as_inputs(table, "X", self.double_)

    # ---- auditing -----------------------------------------------------------------------------

    def audit(self, X: Any, y: ArrayLike, folds: int = 5) -> Audit:
        """Which labels are wrong, and what they should be.

        Args:
            X: the inputs.
            y: their labels, which are judged.
            folds: every label is judged by a model that never saw it, in so many fits of this
                estimator. 0: by this fitted model, once; cheaper, but a label it was trained on
                looks better.

        Returns:
            The verdict on every label; `to_html` writes the report.
        """
        if folds == 0:
            check_is_fitted(self)
            _check_labels(y)
            x, given = self._check_inputs(X), np.asarray(_plain(y, "y"))
        else:
            x, given, _ = clone(self)._check_training(X, y)
        if given.ndim > 1:
            raise BadInput(ONE_LABEL)
        if len(given) != len(x):
            raise BadInput(f"there are {len(given)} labels for {len(x)} rows of X")
        classes = self.classes_ if folds == 0 else unique_labels(given)
        place = {name: label for label, name in enumerate(classes.tolist())}
        strange = [name for name in np.unique(given).tolist() if name not in place]
        if strange:
            raise BadInput(
                f"y holds the label {strange[0]!r}, which the model was not fitted on; it knows "
                f"{few(place, 10)}"
            )
        labels = torch.tensor([place[name] for name in given.tolist()])
        data = Data(x, labels, len(classes), names=tuple(str(c) for c in classes))
        found = self.audit_data(data, folds=folds).with_classes(classes.tolist())
        if found.context.rows is not None:  # the values as they were given, not as float32
            found.context.rows = X if isinstance(X, pd.DataFrame | Tensor) else np.asarray(X)
        return found

    def audit_data(
        self,
        data: Data,
        folds: int = 5,
        on_record: Callable[[Record], None] = lambda record: None,
        keep: Path | None = None,
        encoder: Encoder | None = None,
    ) -> Audit:
        """The audit of a Data (which may be lazy); images that cannot be read are left out.

        Args:
            data: the rows, whose labels are judged.
            folds: as of `audit`.
            on_record: hears of every epoch of the folds' fits; the record's stage names the fold.
            keep: a file for what these fits say, so that the next audit of the same needs none.
            encoder: what the file `self.encoder` holds, where it has been read already.

        Returns:
            The verdict on every label.
        """
        if data.y.dim() > 1:
            raise BadInput(ONE_LABEL)
        data, unread = without_unreadable(data)
        if folds == 0:
            self._check_classes(data)
            answers = self._answers(data)
            notes = ["In-sample: the model that judged the labels was trained on them."]
        else:
            seed = self.random_state if isinstance(self.random_state, int) else 0
            encoder = encoder or self._load_encoder()
            answers, notes = kept_or_made(
                keep,
                lambda: self._audit_key(data, folds, encoder),
                lambda: out_of_fold(data, folds, seed, self._fold_fit(data, encoder), on_record),
            )
            notes += single_rows(data)
        found = audit(answers.probs, data.y, transition=answers.transition, names=data.names)
        if folds:
            found.notes.remove(NOTE_OUT_OF_FOLD)  # they do
        found.notes.extend([*notes, *unread])
        found.context.method = self._method_name()
        if len(data.shape) > 1:
            found.context.images = data.x
        else:
            found.context.rows = data.x  # type: ignore[assignment]
        return found

    def _audit_key(self, data: Data, folds: int, encoder: Encoder | None) -> str:
        """The hash of all that the folds' answers depend on, whatever their files are called."""
        method, network = self.method, self.backbone
        fields = _fields(method, data.num_classes) if isinstance(method, Method) else {}
        settings = self.get_params(deep=False) | {"method": [self._method_name(), fields]}
        start = {} if encoder is None else encoder.weights
        settings |= {"encoder": None}
        weights = network.state_dict() if isinstance(network, nn.Module) else {}
        return hash_of([fingerprint(data), folds, repr(settings), start, weights])

    def _check_classes(self, data: Data) -> None:
        if data.num_classes != len(self.classes_):
            raise BadInput(
                f"the data has {data.num_classes} classes, but the model was fitted on "
                f"{len(self.classes_)}; fit it again"
            )

    def _answers(self, data: Data) -> Answers:
        """The clean posteriors, and T(x) where the method has one of its own; data is read once."""
        K = data.num_classes
        if not self._has_transition():
            return Answers(self.predict_proba(data), None)

        def of(batch: Batch) -> Tensor:
            p, T = self.method_.predict_proba(batch.x), self.method_.transition(batch)
            assert T is not None
            return torch.cat([p[:, None], T.expand(len(p), K, K)], 1)

        both = self._map(of, data)
        return Answers(both[:, 0].copy(), both[:, 1:].copy())

    def _fold_fit(self, data: Data, encoder: Encoder | None) -> FoldFit:
        """How a fold is trained: as all of the data would be, though it has fewer rows."""
        whole = clone(self)._recipe(data)

        def fit(part: Data, on_record: Callable[[Record], None]) -> Callable[[Data], Answers]:
            fitted = clone(self).set_params(val=whole.val, keep=whole.keep)
            if self._is_auto():
                fitted.set_params(method=self._method_name())  # one race is enough
            fitted._train(part, None, None, None, encoder, on_record, {})
            if fitted.interrupted_:
                raise KeyboardInterrupt  # a fold that was trained for less would judge otherwise
            return fitted._answers

        return fit

    def _has_transition(self) -> bool:
        """Does the method have a T of its own?"""
        device = choose_device(self.device)
        with torch.no_grad():
            known = self.method_.transition(unseen(torch.zeros(1, *self.shape_, device=device)))
        return known is not None

    def _estimate_transition(
        self, data: Data, answers: dict[str, NDArray[Any]] | None = None
    ) -> Tensor:
        """The class-level T that the predictions for the training rows imply."""
        if data.y.dim() > 1:
            return torch.eye(data.num_classes)  # of pixels: not estimated
        probs, unreadable_rows = self._posteriors(data)
        if answers is not None:
            answers |= {"probs": probs.float().cpu().numpy(), "unreadable_rows": unreadable_rows}
        return confident_joint(probs, data.y.to(probs.device)).T.float().cpu()

    # ---- files --------------------------------------------------------------------------------

    def save(self, path: str | Path, force: bool = False) -> None:
        """One safetensors file with a JSON header; no pickle.

        Args:
            path: of the file.
            force: replace a file that is no classifier.
        """
        check_is_fitted(self)
        check_replaceable(Path(path), "classifier", force)
        params = self.get_params(deep=False)
        params |= {"method": None, "random_state": self.recipe_.seed}  # what a refit needs
        params["encoder"] = None if self.encoder is None else str(self.encoder)
        # a network of the user's own is not written: Classifier.load takes it again
        params["backbone"] = self._backbone_ if isinstance(self._backbone_, str) else None
        meta = {
            "kind": "classifier",
            "method": self.method_.name,
            "fields": _fields(self.method_, len(self.classes_)),
            "params": params,
            "classes": plain_classes(self.classes_),
            "shape": list(self.shape_),
            "num_train": self.method_.spec.num_train,
            "n_features_in": self.n_features_in_,
            "schema": asdict(self.schema_) if self.schema_ else None,
            "feature_names": getattr(self, "feature_names_in_", np.array([])).tolist(),
        }
        if self.double_:
            meta["double"] = True
        if (kind := self.classes_.dtype).kind in "mMu":  # what a list alone does not tell
            meta["class_type"] = str(kind)
        tensors = {f"method.{name}": t for name, t in self.method_.state_dict().items()}
        checkpoint.save(Path(path), tensors | {"transition": self._class_transition_}, meta)

    @classmethod
    def load(cls, path: str | Path, backbone: nn.Module | None = None) -> Classifier:
        """A classifier that `save` wrote.

        Args:
            path: of the file.
            backbone: the network that it was trained with, where that was a module of your own.
        """
        tensors, meta = checkpoint.load(Path(path))
        if meta.get("kind") != "classifier":
            raise BadInput(f"{path} holds no classifier; it was not written by Classifier.save")
        try:
            return cls._restored(path, tensors, meta, backbone)
        except (KeyError, TypeError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).strip().splitlines()[-1].strip()
            raise BadInput(
                f"{path} does not fit this version of ytilde (or the network given): {reason}"
            ) from error

    @classmethod
    def _restored(
        cls, path: str | Path, tensors: dict[str, Tensor], meta: Any, backbone: nn.Module | None
    ) -> Classifier:
        if meta["params"]["backbone"] is None and backbone is None:
            raise BadInput(f"{path} was trained with a network of yours; pass it as backbone=")
        self = cls(**(meta["params"] | {"method": create(meta["method"], **meta["fields"])}))
        self.backbone = backbone or meta["params"]["backbone"]
        self.classes_ = np.asarray(meta["classes"], dtype=meta.get("class_type"))
        self.shape_, self.n_features_in_ = tuple(meta["shape"]), meta["n_features_in"]
        self.schema_ = Schema(**meta["schema"]) if meta.get("schema") else None
        if meta["feature_names"]:
            self.feature_names_in_ = np.asarray(meta["feature_names"], dtype=object)
        self._backbone_, self.double_ = self.backbone, meta.get("double", False)
        shape = (meta["num_train"], *self.shape_)
        labels = torch.zeros((), dtype=torch.int64).expand(shape[0])
        zero = torch.zeros((), dtype=torch.float64 if self.double_ else torch.float32)
        blank = Data(zero.expand(shape), labels, len(self.classes_))
        self.recipe_ = self._recipe(blank)
        self.history_, self.interrupted_ = [], False
        self._class_transition_ = tensors.pop("transition")
        self.method_ = self._new_method()
        network = without_weights(self._backbone_)  # the file has them all
        spec = make_spec(blank.rows(torch.arange(1)), network, self.recipe_)
        self.method_.build(replace(spec, num_train=meta["num_train"]))
        self.method_.load_state_dict({k.removeprefix("method."): v for k, v in tensors.items()})
        to_device(self.method_, choose_device(self.device))
        self.method_.eval()
        return self


def plain_classes(classes: NDArray[Any]) -> list[Any]:
    """The classes as JSON can hold them: times as texts, durations as whole numbers."""
    kind = classes.dtype.kind
    return (classes.astype(str if kind == "M" else np.int64) if kind in "mM" else classes).tolist()


@contextmanager
def _one_sentence() -> Iterator[None]:
    """What scikit-learn finds wrong with an input, as BadInput (which is a ValueError)."""
    try:
        yield
    except ValueError as error:
        raise error if isinstance(error, BadInput) else BadInput(error) from error


def _check_labels(y: Any) -> None:
    if as_array(y, "the labels y").dtype.kind == "c":
        return  # scikit-learn refuses them, in words that its checks ask for
    labels = label_array(y, "the labels y")
    if labels.ndim == 0:
        raise BadInput(f"y must hold one label for each row of X, not be {y!r}")
    if pd.isna(labels).any():
        raise BadInput("y holds missing labels; fill them in or leave the rows out")


def _plain(values: Any, what: str) -> Any:
    """Tensors as arrays; what no array can be made of, and tables whose columns share a name, are
    refused."""
    if isinstance(values, pd.DataFrame):
        if not values.columns.is_unique:
            twice = values.columns[values.columns.duplicated()][0]
            raise BadInput(f"{what} has several columns called {twice!r}; rename or remove one")
        return values
    array = as_array(values, what)
    return array if isinstance(values, Tensor) else values


def as_images(X: Any) -> Tensor:
    """[N, C, H, W] images, uint8 or float in [0, 1]; [N, H, W] and [N, H, W, 3] are put right."""
    if _ndim(X) not in (3, 4):
        raise BadInput(f"X must be [N, D] features or [N, C, H, W] images, not {np.shape(X)}")
    return as_inputs(X, "X")


def _fields(method: Method, num_classes: int) -> dict[str, Any]:
    """A method's fields as plain values: T is an array, or a file that may be another one later."""
    fields = method.get_params()
    if fields.get("T") is not None:
        fields["T"] = validate_transition(fields["T"], num_classes).tolist()
    return fields


def _fit_beside(method: Method, data: Data, recipe: Recipe, options: dict[str, Any]) -> None:
    """The fit as the processes beside the leader run it."""
    x = torch.from_numpy(data.x) if isinstance(data.x, np.ndarray) else data.x
    fit_method(method, replace(data, x=x, y=torch.from_numpy(data.y)), recipe, **options)


def _sent(data: Data) -> Any:
    """The data for another process: arrays go through a pipe, tensors through shared memory, of
    which containers have little."""
    x = data.x.numpy() if isinstance(data.x, Tensor) else data.x
    return replace(data.without_clean(), x=x, y=data.y.numpy())  # type: ignore[arg-type]


def _holds_text(X: Any) -> bool:
    kinds = (infer_dtype(X[name]) for name in X) if isinstance(X, pd.DataFrame) else ()
    return any(kind in ("string", "categorical") for kind in kinds)


def _ndim(X: Any) -> int:
    return X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim
