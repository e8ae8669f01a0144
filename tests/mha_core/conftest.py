import sys
from pathlib import Path

sys.path.append(
    str(Path(__file__).parent)
)  # attention_reference and array_libraries, shared by the tests here
