import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "scale"), str(TESTS / "mha_core")]  # programs, array_libraries
