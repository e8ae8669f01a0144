"""Prints what the instructions in use are, and a hash of every case of a sample that is built with them."""

import hashlib
import json
import sys

import numpy as np

from conformance.vectors.generate.build import build
from conformance.vectors.generate.cases import drafts
from conformance.vectors.generate.select import chosen
from conformance.vectors.generate.write import encoded

LARGEST = 4_000  # numbers in the inputs
SHARE = "5/20"
"""Of the small cases; more or fewer are the time that the test takes."""


def sample():
    small = {
        draft.id: draft
        for draft in drafts()
        if not draft.raises and sum(array.size for array in draft.inputs.values()) <= LARGEST
    }
    return [small[name] for name in sorted(chosen([], SHARE, small))]


def hashed(draft):
    tensors, entry = encoded(build(draft))
    digest = hashlib.sha256(json.dumps(entry).encode())
    for key, array in tensors.items():
        digest.update(f"{key} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    json.dump({"found": found, "cases": {draft.id: hashed(draft) for draft in sample()}}, sys.stdout)
