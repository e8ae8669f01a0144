"""Right programs on drawn calls: a share of `python -m tests.exploring.soundness`."""

from typing import Any

import pytest

from conformance.exploring.recipe import read_token
from conformance.exploring.trial import certify_recipe
from conformance.running.target import adopt
from tests.exploring.programs import right
from tests.exploring.soundness import Programs, Sound, merged, run

pytestmark = pytest.mark.turns(3, whole=True)


def test_no_right_program_is_refused() -> None:
    sound = Sound(20261129, "1/1")
    programs = Programs(("numpy",), sound)
    for _ in run(sound, programs, 40, float("inf")):
        pass
    assert not sound.alarms, sound.alarms[:5]
    assert not sound.absent
    assert sound.certified >= 35
    assert sound.total > 1000


def test_a_wrong_program_is_refused() -> None:
    sound = Sound(5, "1/1")
    programs = Programs((), sound)

    def doubled(
        query: Any, key: Any, value: Any, *, mask: Any = None, is_causal: bool = False, q_offset: Any = None,
        window: Any = None, kv_lengths: Any = None, scale: Any = None,
    ) -> Any:  # fmt: skip
        return 2 * right(
            query, key, value, mask=mask, is_causal=is_causal, q_offset=q_offset, window=window,
            kv_lengths=kv_lengths, scale=scale,
        )  # fmt: skip

    programs._forward, programs._backward = [(adopt(doubled, "doubled"), "fused")], []
    for _ in run(sound, programs, 30, float("inf")):
        pass
    assert sound.alarms


def test_shares_add_up() -> None:
    one, two = Sound(1, "1/2", drawn=3, judged={"a": 2}), Sound(1, "2/2", drawn=4, judged={"a": 1, "b": 1})
    both = merged([one, two])
    assert (both.drawn, both.total, both.judged) == (7, 4, {"a": 3, "b": 1})


def test_the_lse_of_far_logits_may_be_off_by_what_its_operands_are() -> None:
    """A query and a key rounded to eight bits move a logit of 741,451 by thousands, more than exp can hold."""
    recipe = read_token("x1_oa_t32_b2_q48_k65_d2_v8_n13,55_y_l_Dkp-10,qp10_r8896818_38aa")
    certified = certify_recipe(recipe, "explore/far")
    assert certified is not None
    bounds = certified.case.expected["lse"].bounds["float32"]
    for policy, unit in (("tf32", 2.0**-11), ("tf32t", 2.0**-10), ("bf16x1", 2.0**-8)):
        least = 2 * unit * abs(float(certified.case.expected["lse"].hi[1, 0, 19]))
        assert least <= float(bounds[policy].worst[1, 0, 19]) < 1.05 * least
