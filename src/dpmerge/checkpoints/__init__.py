"""Tensors in, tensors out: readers, one streaming weighted sum, writers. No torch in the path, no accounting."""

from dpmerge.checkpoints.digests import content_digest
from dpmerge.checkpoints.merge import copy_model, merge_models
from dpmerge.checkpoints.opening import open_model
from dpmerge.checkpoints.tensors import Checkpoint, Tensor
from dpmerge.checkpoints.verify import Difference, combine_tensors, read_tensors, verify_combination
from dpmerge.checkpoints.writing import MergeReport

__all__ = [
    "Checkpoint",
    "Difference",
    "MergeReport",
    "Tensor",
    "combine_tensors",
    "content_digest",
    "copy_model",
    "merge_models",
    "open_model",
    "read_tensors",
    "verify_combination",
]
