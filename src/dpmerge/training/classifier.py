"""`PrivateLinearClassifier`: a scikit-learn classifier whose `fit` is (ε, δ)-DP, by the theorem on hidden runs."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_scalar
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dpmerge.datasets import bounded_features
from dpmerge.errors import TrainingError
from dpmerge.records import Portfolio
from dpmerge.release import Ledger, choose, release
from dpmerge.training.advice import LinearSetting
from dpmerge.training.calibration import calibrated
from dpmerge.training.head import HeadConfig, LinearHead
from dpmerge.training.linear import Loss, train
from dpmerge.training.recipe import Recipe

Array = npt.NDArray[Any]
_NAME = "model"
EXAMPLES_PUBLIC = "the number of examples is public"
LABELS_PUBLIC = "which labels there are is public: they were taken from the data"


class PrivacyWarning(UserWarning):
    """Something about the data was taken for public that was not stated to be."""


class PrivateLinearClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Linear classification that is (epsilon, delta)-DP for add-remove neighbours; the number of examples counts as public.

    `fit` finds the noise that the target needs if nothing but the fitted model is ever published, trains, and releases the
    model with fresh noise: `coef_` and `intercept_` are what was released. `guarantee_` says what holds, and what it assumes.
    Every fit on the same people's data costs its own ε.

    `norm_bound` is r: every row, with a 1 for the bias, is shortened to norm r at most. Features are best scaled before, by
    public constants.
    `classes` are all labels, which must not be taken from private data; if it is not given they are taken from `y`, with a
    warning, `guarantee_` assumes that they are public, and there is no certificate (`certificate_` is None).
    `loss` is softmax, logistic or one-vs-rest; None: logistic for two classes, else softmax. `learning_rate` None: half the
    largest at which no step drives two models apart. `clip` None: the least that never binds for softmax, else r/2 for each
    output. `rate` is that of Poisson batches; None: every example in every step.
    `folder` keeps the private model, the release and its certificate; `ledger` adds the release to others of the same data,
    which `dataset` names. There is no seed: noise that can be drawn again protects nobody.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        norm_bound: float = 2.0,
        classes: npt.ArrayLike | None = None,
        loss: Loss | None = None,
        steps: int = 50,
        learning_rate: float | None = None,
        rate: float | None = None,
        clip: float | None = None,
        weight_decay: float = 0.0,
        dataset: str = "private",
        folder: str | Path | None = None,
        ledger: str | Path | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.norm_bound = norm_bound
        self.classes = classes
        self.loss = loss
        self.steps = steps
        self.learning_rate = learning_rate
        self.rate = rate
        self.clip = clip
        self.weight_decay = weight_decay
        self.dataset = dataset
        self.folder = folder
        self.ledger = ledger

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> PrivateLinearClassifier:
        """Train and release. `record_`, `guarantee_` and `certificate_` say what was done."""
        self._check_parameters()
        ledger = None if self.ledger is None else Ledger(self.ledger)
        rows, labels = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(labels)
        self.classes_, known = self._labels(labels)
        setting = self._setting(len(rows), len(self.classes_))
        found = calibrated(setting, epsilon=self.epsilon, delta=self.delta)
        (model,) = train(
            bounded_features(rows, self.norm_bound),
            known,
            len(self.classes_),
            found.setting.recipe,
            norm_bound=self.norm_bound,
            dataset=self.dataset,
            loss=setting.loss,
        )
        self.record_ = model.record
        config = HeadConfig(loss=setting.loss, norm_bound=self.norm_bound).text()
        with ExitStack() as kept:
            where = kept.enter_context(tempfile.TemporaryDirectory()) if self.folder is None else self.folder
            private, out = Path(where) / "private", Path(where) / "release"
            replace(model, config=config).save(private / _NAME)
            portfolio = Portfolio(private)
            weights = portfolio.weights({_NAME: 1.0})
            noise = found.release_noise
            choice = choose(portfolio, "combination", delta=self.delta, epsilon=self.epsilon, weights=weights, noise=noise)
            made = release(portfolio, choice, out, ledger=ledger)
            self._head = LinearHead.load(out)
        public = (EXAMPLES_PUBLIC,) if self.classes is not None else (EXAMPLES_PUBLIC, LABELS_PUBLIC)
        self.guarantee_ = replace(made.guarantee, assumptions=(*made.guarantee.assumptions, *public))
        self.certificate_ = None if self.classes is None else made.certificate  # it could not say that labels are public
        self.coef_, self.intercept_ = self._head.weight, self._head.bias
        return self

    def _check_parameters(self) -> None:
        """Of what kind they are, as scikit-learn's own estimators do. Targets and recipes check ranges, here as everywhere."""
        check_scalar(self.norm_bound, "norm_bound", Real, min_val=0, include_boundaries="neither")
        check_scalar(self.steps, "steps", Integral)
        for name in ("epsilon", "delta", "learning_rate", "rate", "clip", "weight_decay"):
            if (value := getattr(self, name)) is not None or name in ("epsilon", "delta", "weight_decay"):
                check_scalar(value, name, Real)
        if self.loss not in (known := (*get_args(Loss), None)):
            raise ValueError(f"loss is {self.loss!r}; it must be one of {', '.join(map(str, known))}")

    @classmethod
    def load(cls, folder: str | Path, classes: npt.ArrayLike | None = None) -> PrivateLinearClassifier:
        """A fitted classifier from a folder: of a release, or of a model that `dpmerge train` made; nothing is trained.

        `classes` are its labels in order; without them, 0, 1, ….
        """
        head = LinearHead.load(folder)
        made = cls(norm_bound=head.config.norm_bound, loss=head.config.loss, classes=classes)
        made._head, made.coef_, made.intercept_ = head, head.weight, head.bias
        made.classes_ = head.classes_ if classes is None else np.asarray(classes)
        if len(made.classes_) != len(head.classes_):
            raise TrainingError(f"classes names {len(made.classes_)} labels; the head in {folder} has {len(head.classes_)}")
        made.n_features_in_ = head.weight.shape[1]
        return made

    def decision_function(self, X: npt.ArrayLike) -> Array:
        return self._fitted().decision_function(self._rows(X))

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        return self._fitted().predict_proba(self._rows(X))

    def predict(self, X: npt.ArrayLike) -> Array:
        head = self._fitted()
        return np.asarray(self.classes_[head.predict(self._rows(X))])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # there is no seed
        tags.classifier_tags.poor_score = True  # noise hides small data sets
        return tags

    def _fitted(self) -> LinearHead:
        check_is_fitted(self)
        return self._head

    def _rows(self, X: npt.ArrayLike) -> Array:
        return cast(Array, validate_data(self, X, reset=False, dtype=np.float32))

    def _labels(self, labels: Array) -> tuple[Array, npt.NDArray[np.int64]]:
        """All classes in order, and the place of each label among them."""
        if self.classes is None:
            if self.folder is not None or self.ledger is not None:
                raise TrainingError(
                    "classes: what is certified or counted in a ledger needs them stated, not taken from the data"
                )
            warnings.warn(f"classes was not given: {LABELS_PUBLIC}", PrivacyWarning, stacklevel=3)
            classes = np.unique(labels)
        else:
            classes = np.unique(np.asarray(self.classes))
        if len(classes) < 2:
            raise ValueError(f"the number of classes must be greater than one; got {len(classes)} class")
        places = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
        if not np.array_equal(classes[places], labels):
            raise ValueError("y holds labels that are not among classes")
        return classes, places.astype(np.int64)

    def _setting(self, examples: int, classes: int) -> LinearSetting:
        loss: Loss = ("logistic" if classes == 2 else "softmax") if self.loss is None else self.loss
        outputs = 1 if loss == "logistic" else classes
        recipe = Recipe(
            steps=self.steps,
            learning_rate=1.0 if self.learning_rate is None else self.learning_rate,
            clip=self.norm_bound / 2 * outputs**0.5 if self.clip is None else self.clip,
            noise_multiplier=1.0,
            rate=self.rate,
            weight_decay=self.weight_decay,
        )
        setting = LinearSetting(recipe, loss, examples, self.norm_bound)
        if self.clip is None and loss == "softmax":
            setting = replace(setting, recipe=replace(recipe, clip=setting.least_clip()))
        if self.learning_rate is None:
            pace = setting.largest_learning_rate(1, self.delta) / 2
            setting = replace(setting, recipe=replace(setting.recipe, learning_rate=pace))
        return setting
