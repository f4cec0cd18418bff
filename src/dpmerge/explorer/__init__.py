"""The explorer: an HTTP API on loopback under the page where people turn the privacy knob. Needs dpmerge[explorer]."""
