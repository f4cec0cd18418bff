"""Private training as the papers vary it: networks, aggregates of iterates, batches that shift, and DP-FTRL."""

TRAINERS = {
    **dict.fromkeys(("softmax", "logistic", "one-vs-rest"), "dpmerge_lab.training.trainers:LabLinear"),
    **dict.fromkeys(("mlp", "cnn", "resnet18", "wrn-16-4"), "dpmerge_lab.training.trainers:Network"),
}
