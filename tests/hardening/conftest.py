import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # depth and damage, shared by the tests here
