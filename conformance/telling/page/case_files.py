"""Cases to download from the page: the files that `run --case` and `show` take."""

import json
from urllib.parse import quote

from conformance.exploring.stored import NoFileError, stored_file
from conformance.vectors.case import Case

MOST_OF_FILES = 300_000
"""Characters of the files that a page holds."""
MOST_OF_FILE = 20_000
"""Characters of one."""
PLAIN = "{}[]:,+/=-"
"""What stands in an address as it is."""


def file_name(case: str) -> str:
    """What the file of a case is called."""
    return f"{case.replace('/', '-')}.json"


def file_address(case: Case, dtype: str) -> str:
    """The file of a case as an address that holds it; empty where a file cannot hold the case, or is too large."""
    if case.elements > MOST_OF_FILE:  # which are not even encoded
        return ""
    try:
        found = stored_file(case, dtype)
    except NoFileError:
        return ""
    address = f"data:application/json,{quote(json.dumps(found, separators=(',', ':')), safe=PLAIN)}"
    return address if len(address) <= MOST_OF_FILE else ""
