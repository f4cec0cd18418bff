"""Data sets of the experiments, and how well a model does on a public test part."""

DATASETS = {name: f"dpmerge_lab.tasks.images:{name}" for name in ("digits", "centred_digits", "mnist", "cifar10")}
EVALUATORS = {"digits": "dpmerge_lab.tasks.digits:accuracy", "centred_digits": "dpmerge_lab.tasks.digits:centred_accuracy"}
