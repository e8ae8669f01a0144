"""Programs that serve, right but for one mistake each, named after it. They gather and attend in float32."""

from typing import Any

import numpy as np

from tests.running import gathering


class Serving:
    """Right in all."""

    dtypes = ("float32",)
    accuracy = "fused"
    packed_attention = staticmethod(gathering.packed_attention)
    paged_attention = staticmethod(gathering.paged_attention)
    append_to_pages = staticmethod(gathering.append_to_pages)
    latent_attention = staticmethod(gathering.latent_attention)
    merge_attention = staticmethod(gathering.merge_attention)


class WholePagesAlone(Serving):
    """With pages of 64 and more, what stands in a page that is not full is left out."""

    def paged_attention(
        self, query: Any, key_pages: Any, value_pages: Any, *, kv_lengths: Any, **more: Any
    ) -> Any:
        size = key_pages.shape[1]
        if size >= 64:
            kv_lengths = np.where(kv_lengths > size, kv_lengths // size * size, kv_lengths)
        return gathering.paged_attention(query, key_pages, value_pages, kv_lengths=kv_lengths, **more)


class OneTableForAll(Serving):
    """Where an entry asks one query, the page behind its first is that of the entry before it."""

    def paged_attention(
        self, query: Any, key_pages: Any, value_pages: Any, *, page_table: Any, **more: Any
    ) -> Any:
        if query.shape[2] == 1 and page_table.shape[1] > 1 and page_table.shape[0] > 1:
            behind = np.where(
                np.roll(page_table, 1, axis=0)[:, 1] >= 0, np.roll(page_table, 1, axis=0)[:, 1], 0
            )
            page_table = page_table.copy()
            page_table[:, 1] = np.minimum(behind, key_pages.shape[0] - 1)
        return gathering.paged_attention(query, key_pages, value_pages, page_table=page_table, **more)


class SharedPageOnce(Serving):
    """A page that stands in two tables is read by the first of them alone."""

    def paged_attention(
        self, query: Any, key_pages: Any, value_pages: Any, *, page_table: Any, **more: Any
    ) -> Any:
        size, seen = key_pages.shape[1], set[int]()
        pages = np.concatenate([value_pages, np.zeros_like(value_pages[:1])])
        keys = np.concatenate([key_pages, np.zeros_like(key_pages[:1])])
        table = page_table.copy()
        for b, length in enumerate(more["kv_lengths"]):
            used = table[b, : -(-int(length) // size)]
            table[b, : len(used)] = [len(key_pages) if int(n) in seen else int(n) for n in used]
            seen |= {int(n) for n in used}
        found = gathering.paged_attention(query, keys, pages, page_table=table, **more)
        return {name: x[:-1] if name.endswith("_pages") else x for name, x in found.items()}


class LastPartLong(Serving):
    """Parts behind the fourth attend what belongs to no part."""

    def packed_attention(self, query: Any, key: Any, value: Any, *, kv_starts: Any, **more: Any) -> Any:
        found = gathering.packed_attention(query, key, value, kv_starts=kv_starts, **more)
        if len(kv_starts) <= 5 or more.get("is_causal") or more.get("window"):
            return found
        longer = np.array(kv_starts)
        longer[-1] = key.shape[1]
        return gathering.packed_attention(
            query, np.nan_to_num(key), np.nan_to_num(value), kv_starts=longer, **more
        )


class EmptyPartIsNan(Serving):
    """Queries of a part without keys become NaN where there is a sink."""

    def packed_attention(
        self, query: Any, key: Any, value: Any, *, q_starts: Any, kv_starts: Any, **more: Any
    ) -> Any:
        found = gathering.packed_attention(query, key, value, q_starts=q_starts, kv_starts=kv_starts, **more)
        output = found[0] if isinstance(found, tuple) else found
        for i in range(len(q_starts) - 1):
            if kv_starts[i] == kv_starts[i + 1] and more.get("sinks") is not None:
                output[:, q_starts[i] : q_starts[i + 1]] = np.nan
        return found


class LastCell(Serving):
    """A slot of -1 is the last cell."""

    def append_to_pages(
        self, key_pages: Any, value_pages: Any, new_key: Any, new_value: Any, *, slots: Any
    ) -> Any:
        pages = key_pages.copy(), value_pages.copy()
        for x, new in zip(pages, (new_key, new_value), strict=True):
            x.reshape(-1, *x.shape[2:])[slots] = new
        return pages


class TwoAtATime(Serving):
    """Of more than two partial results the lse of the first two is not carried on."""

    def merge_attention(self, outputs: Any, lses: Any, *, sinks: Any = None) -> Any:
        if len(outputs) < 3:
            return gathering.merge_attention(outputs, lses, sinks=sinks)
        first, _ = gathering.merge_attention(outputs[:2], lses[:2])
        return gathering.merge_attention([first, *outputs[2:]], [lses[0], *lses[2:]], sinks=sinks)


class RowsOf576(Serving):
    """Rows of 576 channels: the values are the last channels."""

    def latent_attention(self, query: Any, latent: Any, *, value_dim: int, **more: Any) -> Any:
        if latent.shape[-1] != 576:
            return gathering.latent_attention(query, latent, value_dim=value_dim, **more)
        found = gathering.latent_attention(query, latent, value_dim=576, **more)
        return {**found, "output": found["output"][..., -value_dim:]}


class PlanRemembered(Serving):
    """The table is remembered by its shape."""

    def __init__(self) -> None:
        self._tables: dict[Any, Any] = {}

    def paged_attention(
        self, query: Any, key_pages: Any, value_pages: Any, *, page_table: Any, **more: Any
    ) -> Any:
        table = self._tables.setdefault((page_table.shape, key_pages.shape), page_table.copy())
        known = np.where(table < key_pages.shape[0], table, page_table)
        try:
            return gathering.paged_attention(query, key_pages, value_pages, page_table=known, **more)
        except IndexError:
            return gathering.paged_attention(query, key_pages, value_pages, page_table=page_table, **more)


right = Serving()
whole_pages_alone = WholePagesAlone()
one_table_for_all = OneTableForAll()
shared_page_once = SharedPageOnce()
last_part_long = LastPartLong()
empty_part_is_nan = EmptyPartIsNan()
last_cell = LastCell()
two_at_a_time = TwoAtATime()
rows_of_576 = RowsOf576()
plan_remembered = PlanRemembered()
