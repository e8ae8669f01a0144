"""What an installation does away from any checkout: words, exit status, and what it says."""

LAYER = (
    "import numpy as np, mha_core; x = np.ones((2, 3, 4)); "
    "print('sum', mha_core.scaled_dot_product_attention(x, x, x).sum())"
)
TEXT = "import conformance.resources as r; print(len(list(r.spec_directory().glob('decisions/*.md'))) > 30)"
JUDGED = (
    "import numpy as np, mha_core, conformance; x = np.ones((1, 2, 3, 4)); "
    "print(conformance.assert_conforms(mha_core.scaled_dot_product_attention(x, x, x), x, x, x).verdict)"
)
SECOND = "pip install python-flint mpmath"

AWAY: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("python", "-m", "pip", "check"), 0, "No broken requirements"),
    (("python", "-c", TEXT), 0, "True"),
    (("python", "-c", LAYER), 0, "sum 24.0"),
    (("python", "-c", JUDGED), 0, "pass"),
    (("mha-conformance", "--version"), 0, "mha-conformance "),
    (("mha-conformance", "explain", "MASK-3"), 0, "A query that may attend nothing yields zeros"),
    (("mha-conformance", "explain", "mask-inverted"), 0, "True in your mask hides the key"),
    (("mha-conformance", "show", "attention/hand-sized"), 0, "ATT-1"),
    (("mha-conformance", "list", "backends"), 0, "torch-portable"),
    (("mha-conformance", "run", "numpy", "--dtype", "float32"), 0, "conformant: "),
    (("mha-conformance", "run", "attention.py:attention", "--html", "a.html"), 0, "conformant: "),
    (("mha-conformance", "vectors", "export", "out"), 0, " cases in "),
    (("mha-conformance", "init", "mine.py"), 0, "mha-conformance run mine.py"),
    (("mha-conformance", "run", "mine.py", "-k", "mask", "-q"), 0, " 0 fail, "),
    # what an installation cannot do says so, and what helps
    (("mha-conformance", "vectors", "verify", "-k", "hand"), 2, SECOND),
    (("mha-conformance", "trace"), 2, "trace needs a checkout of the project"),
    (("mha-conformance", "run", "torch"), 2, "pip install torch"),
)
