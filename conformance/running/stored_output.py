"""What a wrong answer held, kept for those who look at it later."""

from collections.abc import Mapping

from conformance.judging.verdict import Got
from conformance.running.protocol import ProtocolError, encode_array
from conformance.vectors.case import Array

MOST_OF_A_ROW = 64 * 1024
"""Characters of base64 that are kept of one answer."""
TOO_LARGE = f"at most {MOST_OF_A_ROW} are kept of a row"


def keep(outputs: Mapping[str, Array], most: int = MOST_OF_A_ROW) -> tuple[tuple[Got, ...], str]:
    """The outputs as they stand in a report, and why they do not where they are left out."""
    size = sum(4 * -(-array.nbytes // 3) for array in outputs.values())
    if size > most:
        return (), f"{size} characters in base64, {TOO_LARGE}"
    try:
        encoded = {name: encode_array(array) for name, array in outputs.items()}
    except ProtocolError as error:
        return (), f"an output {error}"
    return tuple(Got(name, e["dtype"], tuple(e["shape"]), e["data"]) for name, e in encoded.items()), ""
