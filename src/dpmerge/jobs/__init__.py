"""Run many independent pieces of work on all cores or on a cluster; a killed run can be continued."""

from dpmerge.jobs.finished import Finished as Finished
from dpmerge.jobs.mapping import run_all as run_all
from dpmerge.jobs.progress import Progress as Progress, ProgressBar as ProgressBar
