"""The explorer: an HTTP API on loopback under the page where people turn the privacy knob. Needs dpmerge[explorer]."""

from dpmerge.explorer.api import Explorer as Explorer
from dpmerge.explorer.report import Question as Question, report as report
from dpmerge.explorer.security import Door as Door
from dpmerge.explorer.serving import taking as taking
