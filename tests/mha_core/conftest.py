import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # problems and array_libraries, shared by the tests here
