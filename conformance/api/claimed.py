"""What an exploration draws from, or asks once more: as much as the target supports and the user asks for."""

from conformance.api.wanted import Wanted
from conformance.errors import UsageError
from conformance.exploring.claims import Claims
from conformance.exploring.draw import draw
from conformance.exploring.needs import needs
from conformance.exploring.recipe import Recipe, read_token
from conformance.names import DENSE, DTYPES, OPERATION_FEATURES, OPERATIONS, PAGED
from conformance.running.messages import Hello
from conformance.running.request import Request


def claimed(request: Request, wanted: Wanted, hello: Hello) -> Claims:
    """What is drawn from: the operations, features and dtypes of a target, as far as they are asked for.

    Raises:
        UsageError: nothing is left.
    """
    selection, source = request.selection, request.source
    for dtype in selection.dtypes:
        if dtype not in hello.dtypes:
            raise UsageError(
                f"{source} does not support {dtype}; it supports {', '.join(hello.dtypes) or 'no dtype'}"
            )
    dtypes = tuple(d for d in DTYPES if d in (selection.dtypes or hello.dtypes))
    drawn = DENSE if wanted.large else OPERATIONS
    operations = tuple(o for o in hello.operations if selection.operation in (None, o) and o in drawn)
    features = frozenset(selection.features)
    if selection.operation in hello.operations and not operations:
        raise UsageError(
            f"--op {selection.operation} is not drawn at --size large: leave --size out, or give one of "
            f"{', '.join(drawn)}"
        )
    if features and not features & set(hello.features):
        raise UsageError(f"{source} does not support {', '.join(sorted(features))}: nothing is left to draw")
    if features and features <= set(OPERATION_FEATURES.values()):  # no other operation has them
        operations = tuple(
            o for o in operations
            if OPERATION_FEATURES.get(o) in features or (o == PAGED and "append" in features)
        )  # fmt: skip
    if not operations or not dtypes:
        raise UsageError(
            f"{source} has no operation that explore draws"
            f"{' at --size large' if wanted.large else ''}: it draws {', '.join(drawn)}"
        )
    claims = Claims(operations, frozenset(hello.features), dtypes, wanted.size, features)
    if wanted.large:
        return claims
    if wanted.replay:
        _check_replay(request.source, read_token(wanted.replay), claims)
    if not wanted.replay and all(draw(claims, wanted.seed, n) is None for n in range(64)):
        raise UsageError(f"no call of what {source} claims has the feature {', '.join(sorted(features))}")
    return claims


def _check_replay(source: str, recipe: Recipe, claims: Claims) -> None:
    """That a target supports the call of a token.

    Raises:
        UsageError: it does not.
    """
    if recipe.operation not in claims.operations or recipe.dtype not in claims.dtypes:
        raise UsageError(
            f"--replay: {source} does not support {recipe.operation} in {recipe.dtype}, as it asks"
        )
    if lacking := sorted(needs(recipe) - claims.features):
        raise UsageError(
            f"--replay: the token needs {' and '.join(lacking)}, which the target does not support: {source}"
        )
