"""The forms in which libraries store the weights of a layer, as data: tensors, their axes, and what is tied."""

from dataclasses import dataclass

PARTS = {
    "w_q": ("H", "d_q", "d_k"),
    "w_k": ("G", "d_kv", "d_k"),
    "w_v": ("G", "d_vv", "d_v"),
    "w_o": ("H", "d_v", "d_out"),
    "b_q": ("H", "d_k"),
    "b_k": ("G", "d_k"),
    "b_v": ("G", "d_v"),
    "b_o": ("d_out",),
}
"""The arrays of the stacked form and their sizes (PROJ-5, PROJ-6)."""
QKV, QKV_BIAS = ("w_q", "w_k", "w_v"), ("b_q", "b_k", "b_v")


@dataclass(frozen=True)
class Tensor:
    """One stored tensor: the arrays that lie in it one after the other, each with its axes in this order.

    Axes are numbers of the array's own axes; those in one tuple are merged, and several arrays lie one after
    the other along the merged axis.
    """

    name: str
    parts: tuple[str, ...]
    axes: tuple[tuple[int, ...], ...]

    @property
    def is_bias(self) -> bool:
        """Whether it may be absent."""
        return self.parts[0].startswith("b_")

    @property
    def packed_axis(self) -> int:
        """The axis along which several arrays lie, which is the one that holds the heads."""
        return next(i for i, merged in enumerate(self.axes) if 0 in merged)


@dataclass(frozen=True)
class Form:
    """How one kind of layer stores its weights."""

    name: str
    tensors: tuple[Tensor, ...]
    grouped: bool = False
    """Whether there may be fewer heads of key and value than of query."""
    square: bool = False
    """Whether d_k = d_v and H * d_k = d_q = d_out."""
    biases: str = "each"
    """`each` is optional on its own; `all` or none of them are there; they are `needed`."""
    separator: str = "."
    """What stands between the parts of a name."""
    nested: int = 0
    """How often names are split, from the right, into mappings of mappings: 0 for flat, -1 for all the way."""


ROWS, COLUMNS, KEPT = ((0, 2), (1,)), ((1,), (0, 2)), ((1,), (0,), (2,))
"""A projection as (H * d, d_in), (d_in, H * d) and (d_in, H, d)."""
OUT_ROWS, OUT_COLUMNS, OUT_KEPT = ((2,), (0, 1)), ((0, 1), (2,)), ((0,), (1,), (2,))
"""The projection back as (d_out, H * d_v), (H * d_v, d_out) and (H, d_v, d_out)."""
FLAT, BY_HEAD = ((0, 1),), ((0,), (1,))
"""A bias as (H * d,) and (H, d)."""
ALONE = ((0,),)


def separate(
    names: tuple[str, str, str, str],
    weight: str,
    bias: str,
    layouts: tuple[tuple[tuple[int, ...], ...], ...],
) -> tuple[Tensor, ...]:
    """Four projections with a weight and a bias each; layouts of a projection in, a bias, the projection back."""
    into, flat, back = layouts
    tensors = []
    for letter, name in zip("qkvo", names, strict=True):
        out = letter == "o"
        tensors.append(Tensor(f"{name}{weight}", (f"w_{letter}",), back if out else into))
        tensors.append(Tensor(f"{name}{bias}", (f"b_{letter}",), ALONE if out else flat))
    return tuple(tensors)


_OUT_PROJ = (Tensor("out_proj.weight", ("w_o",), OUT_ROWS), Tensor("out_proj.bias", ("b_o",), ALONE))
_IN_BIAS = Tensor("in_proj_bias", QKV_BIAS, FLAT)
_QKVO = ("query", "key", "value", "out")

FORMS = {
    form.name: form
    for form in (
        Form(
            "pytorch",
            (Tensor("in_proj_weight", QKV, ROWS), _IN_BIAS, *_OUT_PROJ),
            square=True,
            biases="all",
        ),
        Form(
            "pytorch-separate",
            (*(Tensor(f"{w[2:]}_proj_weight", (w,), ROWS) for w in QKV), _IN_BIAS, *_OUT_PROJ),
            square=True,
            biases="all",
        ),
        Form(
            "keras",
            separate(
                ("query", "key", "value", "attention_output"), "/kernel", "/bias", (KEPT, BY_HEAD, OUT_KEPT)
            ),
            grouped=True,
            biases="all",
            separator="/",
        ),
        Form(
            "flax",
            separate(_QKVO, "/kernel", "/bias", (KEPT, BY_HEAD, OUT_KEPT)),
            biases="all",
            separator="/",
            nested=-1,
        ),
        Form(
            "equinox",
            separate(
                ("query_proj", "key_proj", "value_proj", "output_proj"),
                ".weight",
                ".bias",
                (ROWS, FLAT, OUT_ROWS),
            ),
        ),
        Form(
            "haiku",
            separate(("query", "key", "value", "linear"), "/w", "/b", (COLUMNS, FLAT, OUT_COLUMNS)),
            biases="all",
            separator="/",
            nested=1,
        ),
        Form(
            "bert",
            separate(
                ("self.query", "self.key", "self.value", "output.dense"),
                ".weight",
                ".bias",
                (ROWS, FLAT, OUT_ROWS),
            ),
            square=True,
            biases="needed",
        ),
        Form(
            "llama",
            separate(("q_proj", "k_proj", "v_proj", "o_proj"), ".weight", ".bias", (ROWS, FLAT, OUT_ROWS)),
            grouped=True,
        ),
        Form(
            "onnx-attention",
            (
                Tensor("weights", QKV, COLUMNS),
                Tensor("bias", QKV_BIAS, FLAT),
                Tensor("out.weight", ("w_o",), OUT_COLUMNS),
                Tensor("out.bias", ("b_o",), ALONE),
            ),
        ),
        Form(
            "onnx-multi-head-attention",
            (
                Tensor("query.weight", ("w_q",), COLUMNS),
                Tensor("key.weight", ("w_k",), COLUMNS),
                Tensor("value.weight", ("w_v",), COLUMNS),
                Tensor("bias", QKV_BIAS, FLAT),
                Tensor("out.weight", ("w_o",), OUT_COLUMNS),
                Tensor("out.bias", ("b_o",), ALONE),
            ),
        ),
    )
}
"""The forms by name."""
