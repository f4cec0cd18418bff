"""Tensors in, tensors out: readers, one streaming weighted sum, writers. No torch in the path, no accounting."""

from dpmerge.tensors.checkpoint import Checkpoint as Checkpoint, Header as Header, Tensor as Tensor
from dpmerge.tensors.companions import CONFIG as CONFIG, WEIGHTS_FIELD as WEIGHTS_FIELD, is_hub_id as is_hub_id
from dpmerge.tensors.digests import folder_digest as folder_digest
from dpmerge.tensors.dtypes import DTYPES as DTYPES, Scratch as Scratch
from dpmerge.tensors.folder import (
    abandoned as abandoned,
    abandoned_proofs as abandoned_proofs,
    is_proof as is_proof,
    new_folder as new_folder,
    remove_proof as remove_proof,
    require_absent as require_absent,
    require_space as require_space,
    temporary_folder as temporary_folder,
)
from dpmerge.tensors.kernel import weighted_sum as weighted_sum
from dpmerge.tensors.linear import linear_scores as linear_scores
from dpmerge.tensors.merge import copy_model as copy_model, merge_models as merge_models, open_plan as open_plan
from dpmerge.tensors.methods import METHODS as METHODS
from dpmerge.tensors.opening import ADAPTER_CONFIG as ADAPTER_CONFIG, INDEX as INDEX, open_model as open_model
from dpmerge.tensors.path import Noise as Noise, NoisePath as NoisePath, next_rung as next_rung
from dpmerge.tensors.plan import (
    LoraForm as LoraForm,
    MergePlan as MergePlan,
    holds_only_tensors as holds_only_tensors,
    plan_copy as plan_copy,
)
from dpmerge.tensors.safetensors_file import LFS_POINTER as LFS_POINTER, FileState as FileState, header_bytes as header_bytes
from dpmerge.tensors.score import MergedScore as MergedScore, find_evaluator as find_evaluator
from dpmerge.tensors.stream import coarsest_spacing as coarsest_spacing, require_finite as require_finite
from dpmerge.tensors.strict_files import file_inside as file_inside, read_inside as read_inside, read_object as read_object
from dpmerge.tensors.survey import Surveys as Surveys, content_digest as content_digest
from dpmerge.tensors.verify import (
    Difference as Difference,
    read_tensors as read_tensors,
    verify_plan as verify_plan,
)
from dpmerge.tensors.writing import MergeReport as MergeReport
