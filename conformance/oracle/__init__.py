"""The oracle at run time: expected value and tolerance of any call, as a stored case holds them.

`certify` makes the case of a call; `Certified.judge` judges an answer by it, and reports no failure that ball
arithmetic does not confirm.
"""

from conformance.oracle.certified import Certified, UnjudgedError, WrongOracleError
from conformance.oracle.certify import certify

__all__ = ["Certified", "UnjudgedError", "WrongOracleError", "certify"]
