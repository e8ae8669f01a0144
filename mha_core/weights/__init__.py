"""Weights of a layer as other libraries store them, to and from the stacked form, bit for bit.

Plain mappings of arrays go in and come out; no other library is needed than that of the arrays.
"""

from mha_core.weights.convert import export_weights, import_weights
from mha_core.weights.forms import FORMS

__all__ = ["FORMS", "export_weights", "import_weights"]
