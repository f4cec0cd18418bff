"""Merges that are any function of all models, for joint release: one small file each.

A method is a function of (name, tensors, weights): the tensor's name, one float64 array for each model and the weights, in the
models' order. It returns one array of the same shape. A user's own is named as `module:function`. Only joint release covers
such a merge: a theorem about linear combinations does not.
"""

from dpmerge.tensors.methods.slerp import slerp as slerp
from dpmerge.tensors.methods.ties import ties as ties

METHODS = {"slerp": slerp, "ties": ties}
