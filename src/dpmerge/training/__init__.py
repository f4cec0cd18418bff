"""Private training: linear models, portfolios of runs, and the recorder for Opacus. Torch is loaded only where it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpmerge.errors import MissingLibrary
from dpmerge.training.advice import LinearSetting as LinearSetting, advice as advice, limits as limits
from dpmerge.training.calibration import Calibrated as Calibrated, calibrated as calibrated
from dpmerge.training.data import Data as Data
from dpmerge.training.data_fingerprint import (
    data_fingerprint as data_fingerprint,
    data_key_id as data_key_id,
    fingerprint_of as fingerprint_of,
    new_data_key as new_data_key,
    read_data_key as read_data_key,
)
from dpmerge.training.design import Design as Design, Served as Served, design as design
from dpmerge.training.head import HeadConfig as HeadConfig, LinearHead as LinearHead
from dpmerge.training.linear import (
    Head as Head,
    Loss as Loss,
    accuracy as accuracy,
    facts_of_linear as facts_of_linear,
    scores as scores,
    train as train,
    train_heads as train_heads,
)
from dpmerge.training.new_record import (
    StatedKind as StatedKind,
    StatedModel as StatedModel,
    new_record as new_record,
    require_unrecorded as require_unrecorded,
)
from dpmerge.training.origin import (
    Origin as Origin,
    Partition as Partition,
    Start as Start,
    shard_of as shard_of,
    starts_from as starts_from,
)
from dpmerge.training.portfolio import Pending as Pending, train_portfolio as train_portfolio
from dpmerge.training.portfolio_file import PortfolioFile as PortfolioFile
from dpmerge.training.public_network import network_centre as network_centre, network_features as network_features
from dpmerge.training.randomness import (
    GENERATOR as GENERATOR,
    fingerprint as fingerprint,
    fresh_generator as fresh_generator,
    poisson_batch as poisson_batch,
    together as together,
)
from dpmerge.training.recipe import Recipe as Recipe
from dpmerge.training.run_folder import RunFolder as RunFolder
from dpmerge.training.saving import Checkpoint as Checkpoint, Tensors as Tensors, save_model as save_model
from dpmerge.training.so_far import guarantee_so_far as guarantee_so_far
from dpmerge.training.stated import Stated as Stated, StatedSampling as StatedSampling
from dpmerge.training.sweep_cost import SweepCost as SweepCost
from dpmerge.training.tracking import log_privacy as log_privacy
from dpmerge.training.trainer import (
    TELL_EVERY as TELL_EVERY,
    Job as Job,
    Linear as Linear,
    LinearRun as LinearRun,
    RunForm as RunForm,
    Trainer as Trainer,
    every as every,
)

if TYPE_CHECKING:
    from dpmerge.training.classifier import (
        PrivacyWarning as PrivacyWarning,
        PrivateLinearClassifier as PrivateLinearClassifier,
    )
    from dpmerge.training.empty_batches import noise_alone as noise_alone
    from dpmerge.training.lightning_recorder import LightningRecorder as LightningRecorder
    from dpmerge.training.opacus_accounting import from_opacus as from_opacus, opacus_history as opacus_history
    from dpmerge.training.private_trainer import PrivateTrainer as PrivateTrainer
    from dpmerge.training.recorder import Recorder as Recorder, record as record
    from dpmerge.training.recorder_advice import RecordingWarning as RecordingWarning
    from dpmerge.training.recorder_randomness import same_start as same_start

_HOMES = {
    "LightningRecorder": "lightning_recorder",
    "PrivacyWarning": "classifier",
    "PrivateLinearClassifier": "classifier",
    "PrivateTrainer": "private_trainer",
    "Recorder": "recorder",
    "RecordingWarning": "recorder_advice",
    "from_opacus": "opacus_accounting",
    "noise_alone": "empty_batches",
    "opacus_history": "opacus_accounting",
    "record": "recorder",
    "same_start": "recorder_randomness",
}


_NEEDS = {
    "classifier": "scikit-learn; install dpmerge[sklearn]",
    "private_trainer": "Transformers 5 or newer, torch and Opacus; install dpmerge[transformers]",
    "lightning_recorder": "Lightning 2.5 or newer, torch and Opacus; install dpmerge[lightning]",
}
_TORCH = "torch and Opacus 1.6 or newer; install dpmerge[torch]"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(f"{__name__}.{_HOMES[name]}")
    except ImportError as fault:
        raise MissingLibrary(f"{name} needs {_NEEDS.get(_HOMES[name], _TORCH)} ({fault})") from None
    return getattr(home, name)
