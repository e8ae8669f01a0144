"""Programs judged against a problem: calls, checks, a verdict with a score and a reason."""
