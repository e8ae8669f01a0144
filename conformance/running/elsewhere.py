"""What a function of another library's signature is here: the operation, and the names that its arguments have."""

from collections.abc import Iterable

from conformance.names import LATENT, MERGE, PACKED, PAGED

PAGES = {
    "key_cache": "key_pages",
    "value_cache": "value_pages",
    "k_cache": "key_pages",
    "v_cache": "value_pages",
    "block_tables": "page_table",
    "block_table": "page_table",
    "seq_lens": "kv_lengths",
    "seqused_k": "kv_lengths",
    "cache_seqlens": "kv_lengths",
    "context_lens": "kv_lengths",
}
PARTS = {"cu_seqlens_q": "q_starts", "cu_seqlens_k": "kv_starts", "cu_seqlens": "q_starts and kv_starts"}
ROWS = {"kv_c_and_k_pe_cache": "latent", "kv_c": "latent", "compressed_kv": "latent"}
STATES = {"prefix_output": "outputs", "suffix_output": "outputs", "prefix_lse": "lses", "suffix_lse": "lses"}
OTHERS = {PAGED: PAGES, PACKED: PARTS, LATENT: ROWS, MERGE: STATES}
"""Operation -> the names of other libraries for its arguments -> those that they have here."""


def renamed(parameters: Iterable[str]) -> str:
    """Which operation the parameters of a function belong to, and their names here; empty if nothing is known."""
    names = list(parameters)
    found = {operation: [name for name in names if name in of] for operation, of in OTHERS.items()}
    operation = max(found, key=lambda each: len(found[each]))
    if len(found[operation]) < 2 and not (operation == LATENT and found[operation]):
        return ""
    told = ", ".join(f"{name} is {OTHERS[operation][name]}" for name in found[operation])
    return (
        f"it looks like {operation}, where {told}: wrap it in a function of that name with these parameters "
        "(`mha-conformance init FILE --serving` writes one)"
    )
