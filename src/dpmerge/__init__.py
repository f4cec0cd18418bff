"""dpmerge."""
