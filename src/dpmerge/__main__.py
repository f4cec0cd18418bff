"""`python -m dpmerge` is `dpmerge`."""

from dpmerge.cli import main

main()
