"""Private training: what makes a model, and the record of it."""
