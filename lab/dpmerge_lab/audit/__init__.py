"""Games that attack dpmerge's guarantees, and claims of the papers that do not hold (docs/soundness.md)."""

# The function takes nothing, gives a game, and its docstring's first line tells what is attacked.
SCENARIOS = {
    "gaussian-mean": "dpmerge_lab.audit.scenarios.gaussian:gaussian_mean",
    "gaussian-one-run": "dpmerge_lab.audit.scenarios.gaussian:gaussian_one_run",
    "formula-convex": "dpmerge_lab.audit.scenarios.formula_convex:formula_convex",
    "formula-nonconvex": "dpmerge_lab.audit.scenarios.formula_nonconvex:formula_nonconvex",
    "chosen-by-accuracy": "dpmerge_lab.audit.scenarios.chosen:chosen_by_accuracy",
    "chosen-by-tempering": "dpmerge_lab.audit.scenarios.chosen:chosen_by_tempering",
    "best-of-poisson": "dpmerge_lab.audit.scenarios.best_of_poisson:best_of_poisson",
    "doubled-shift": "dpmerge_lab.audit.scenarios.doubled_shift:doubled_shift",
    "one-dimensional-selection": "dpmerge_lab.audit.scenarios.one_dimension:one_dimensional_selection",
    "same-noise": "dpmerge_lab.audit.scenarios.same_randomness:same_noise",
    "same-batches": "dpmerge_lab.audit.scenarios.same_randomness:same_batches",
    "checkpoints": "dpmerge_lab.audit.scenarios.checkpoints:checkpoints",
    "loose-weights": "dpmerge_lab.audit.scenarios.loose_weights:loose_weights",
    "selection": "dpmerge_lab.audit.scenarios.selection:selection",
    "repeated-draws": "dpmerge_lab.audit.scenarios.repeated_draws:repeated_draws",
    "transport-logistic": "dpmerge_lab.audit.scenarios.logistic:transport_logistic",
    "digits-softmax": "dpmerge_lab.audit.scenarios.digits:digits_softmax",
    "digits-canaries": "dpmerge_lab.audit.scenarios.digits:digits_canaries",
    "shuffled": "dpmerge_lab.audit.scenarios.shuffled:shuffled",
    "own-count": "dpmerge_lab.audit.scenarios.own_count:own_count",
    "last-iterate": "dpmerge_lab.audit.scenarios.last_iterate:last_iterate",
    "last-iterate-noised": "dpmerge_lab.audit.scenarios.last_iterate:last_iterate_noised",
}
