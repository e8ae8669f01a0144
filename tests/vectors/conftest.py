import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # second_reference and perturbed, shared by the tests here
