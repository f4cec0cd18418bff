"""Many independent pieces of work: on all cores or on a cluster, and continued where a killed run stopped."""

from dpmerge.jobs.finished import Finished
from dpmerge.jobs.mapping import run_all
from dpmerge.jobs.progress import Progress, ProgressBar

__all__ = ["Finished", "Progress", "ProgressBar", "run_all"]
