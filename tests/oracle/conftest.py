import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # judged_calls, shared by the tests here
