"""Profiles and weights in, the guarantee of a merge out: selection, combination, joint release. One theorem per file."""

from dpmerge.rules.arithmetic import (
    Arithmetic as Arithmetic,
    covers as covers,
    of_many as of_many,
    why_joint as why_joint,
)
from dpmerge.rules.building import (
    DEFAULT_ACCOUNTING as DEFAULT_ACCOUNTING,
    Accounting as Accounting,
    GridRule as GridRule,
    Looked as Looked,
    PlainRule as PlainRule,
    Provenance as Provenance,
    RuleName as RuleName,
    build as build,
    counted_besides as counted_besides,
    require_covered as require_covered,
    require_used as require_used,
)
from dpmerge.rules.combination import Combination as Combination
from dpmerge.rules.compare import (
    Comparison as Comparison,
    compare as compare,
    no_free_lunch_threshold as no_free_lunch_threshold,
)
from dpmerge.rules.filter import Charge as Charge, Filter as Filter, Sum as Sum
from dpmerge.rules.guarantee import (
    MIXTURE_ACCOUNTANTS as MIXTURE_ACCOUNTANTS,
    Accountant as Accountant,
    By as By,
    Guarantee as Guarantee,
    MixtureAccountant as MixtureAccountant,
    ProfileBound as ProfileBound,
    Rule as Rule,
    ShownStanding as ShownStanding,
    Standing as Standing,
    Target as Target,
    answer as answer,
    ask as ask,
)
from dpmerge.rules.joint import Joint as Joint, PairComposition as PairComposition
from dpmerge.rules.plain import (
    GLOSSARY as GLOSSARY,
    chance_of_guessing as chance_of_guessing,
    meaning as meaning,
    plainly as plainly,
)
from dpmerge.rules.release_noise import largest_learning_rate as largest_learning_rate, least_noise as least_noise
from dpmerge.rules.releases import Exposure as Exposure, Releases as Releases, coupled_outcomes as coupled_outcomes
from dpmerge.rules.renoised import Rounding as Rounding
from dpmerge.rules.selection import (
    Selection as Selection,
    selection_epsilons as selection_epsilons,
    selections as selections,
)
from dpmerge.rules.shards import Placed as Placed, placed_profiles as placed_profiles
from dpmerge.rules.statements import (
    about_delta as about_delta,
    about_records as about_records,
    assumed_by as assumed_by,
    require_wanted as require_wanted,
    round_down as round_down,
    round_up as round_up,
    significant as significant,
    whose as whose,
)
from dpmerge.rules.sweep import Sweep as Sweep
from dpmerge.rules.tempered import DRAWING as DRAWING, Tempered as Tempered
from dpmerge.rules.theorems import RECORD as RECORD, THEOREMS as THEOREMS, WEIGHTS as WEIGHTS, Theorem as Theorem
from dpmerge.rules.transport import not_hidden as not_hidden
from dpmerge.rules.tuning import (
    PROFILE as PROFILE,
    RENYI as RENYI,
    Base as Base,
    Calibration as Calibration,
    TuningCost as TuningCost,
    tuning_cost as tuning_cost,
)
from dpmerge.rules.tuning_bounds import pairs_of as pairs_of, renyi_epsilon as renyi_epsilon
from dpmerge.rules.tuning_trials import (
    DistributionName as DistributionName,
    Poisson as Poisson,
    Trials as Trials,
    trials as trials,
)
from dpmerge.rules.validation import Validated as Validated, Validation as Validation
