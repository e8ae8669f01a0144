"""The worked example of two tokens and two heads, and the layer sizes that texts quote."""

from collections.abc import Iterator

import numpy as np

from conformance.names import MHA
from conformance.vectors.generate.draft import Draft, project

# fmt: off

_X = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1]])
_HALVES = np.array(
    [[[1.0, 0], [0, 1], [0, 0], [0, 0]], [[0, 0], [0, 0], [1.0, 0], [0, 1]]]
)  # [H, d_model, d_k]
PRINTED_GAIN = 97 / 128
"""a in W_Q = W_K = diag(1, 1, a, a): softmax([a^2 / sqrt 2, 0]) prints as 0.60, 0.40, and a is exact."""


def _worked(name: str, note: str, gain: float, w_o: np.ndarray) -> Draft:
    w_qk = _HALVES * np.array([1.0, gain])[:, None, None]
    inputs = {"query": _X, "key": _X, "value": _X, "w_q": w_qk, "w_k": w_qk, "w_v": _HALVES, "w_o": w_o}
    covers = ("ATT-1", "ATT-3", "PROJ-1", "PROJ-3", "HEAD-1", "ATT-13")
    return Draft(name, note, covers, MHA, inputs, {"return_weights": True}, readable=True)


def drafts() -> Iterator[Draft]:
    """Three forms of the worked example, then layers of the usual sizes."""
    identity = np.swapaxes(_HALVES, 1, 2)  # [H, d_v, d_out]: concatenation alone
    yield _worked("example/heads-as-computed",
        "Two tokens, d_model 4, two heads of 2 that see one half each: 0.67 and 0.33 in both heads.",
        1.0, identity)
    yield _worked("example/printed-concatenation",
        "The second head is scaled so that its weights print as 0.60 and 0.40, the concatenation that texts show.",
        PRINTED_GAIN, identity)
    mixing = np.array([[2, -1, 0.5, 3], [1, 0, -2, 1], [0.25, 4, 1, -1], [-3, 2, 1, 0.5]]).reshape(2, 2, 4)
    yield _worked("example/output-projection",
        "The same two heads mixed by an output projection that is neither diagonal nor symmetric.",
        PRINTED_GAIN, mixing)
    for d_model, heads, d_k, q_len in ((512, 8, 64, 6), (256, 4, 64, 7), (64, 4, 16, 9)):
        yield project(f"example/layer-{d_model}-as-{heads}-of-{d_k}",
            f"Self-attention of width {d_model} split into {heads} heads of {d_k}, with every bias.",
            "PROJ-1", "PROJ-2", "PROJ-3", "ATT-3",
            batch=(1,), heads=heads, q_len=q_len, kv_len=q_len + 5, d_q=d_model, d_k=d_k)
