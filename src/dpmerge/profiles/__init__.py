"""How private one run is: Rényi divergences, privacy loss distributions, GDP."""

from dpmerge.profiles.absorption import (
    Faces as Faces,
    Grid as Grid,
    Split as Split,
    Stairs as Stairs,
    drained as drained,
    faces as faces,
    followed as followed,
    minorant as minorant,
    pooled as pooled,
    spread as spread,
    stairs as stairs,
)
from dpmerge.profiles.cells import monotone_pmfs as monotone_pmfs
from dpmerge.profiles.formulas import (
    ORDERS as ORDERS,
    Conversion as Conversion,
    best_order as best_order,
    epsilon_from_renyi as epsilon_from_renyi,
    gaussian_delta as gaussian_delta,
    gaussian_epsilon as gaussian_epsilon,
    log_delta_from_renyi as log_delta_from_renyi,
    smallest_epsilon as smallest_epsilon,
)
from dpmerge.profiles.grids import (
    DIRECTIONS as DIRECTIONS,
    Direction as Direction,
    FloatArray as FloatArray,
    accuracy as accuracy,
    closed_forms as closed_forms,
    effort_of_at_most as effort_of_at_most,
    grids_of_accuracy as grids_of_accuracy,
    spend as spend,
    without_closed_forms as without_closed_forms,
)
from dpmerge.profiles.law import Law as Law
from dpmerge.profiles.laws import (
    ApproxDpLaw as ApproxDpLaw,
    GaussianLaw as GaussianLaw,
    NonPrivateLaw as NonPrivateLaw,
    RevealedShiftLaw as RevealedShiftLaw,
)
from dpmerge.profiles.mixture import (
    mixture_delta_by_renyi as mixture_delta_by_renyi,
    mixture_epsilon as mixture_epsilon,
    mixture_epsilon_by_renyi as mixture_epsilon_by_renyi,
)
from dpmerge.profiles.pairs import MixtureLaw as MixtureLaw
from dpmerge.profiles.profile import Profile as Profile
from dpmerge.profiles.runs import (
    RunProfile as RunProfile,
    ShuffleAsPoisson as ShuffleAsPoisson,
    dp_sgd_steps as dp_sgd_steps,
    gathered as gathered,
    record_effect as record_effect,
    run_profile as run_profile,
    sampling_rate as sampling_rate,
    step_law as step_law,
)
from dpmerge.profiles.shifts import (
    ShiftLaw as ShiftLaw,
    binomial_quantile as binomial_quantile,
    binomial_survival as binomial_survival,
    sum_of_coins as sum_of_coins,
)
