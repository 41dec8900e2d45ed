"""Names and attributes for the ops of a `with` body; numerically they do nothing."""

from __future__ import annotations

from poptorch.ops._body import Body


class NameScope:
    """Put `name/` in front of the names of the ops in the body; scopes nest.

    Raises `AssertionError` if `name` is no string.
    """

    def __init__(self, name: str) -> None:
        assert isinstance(name, str), f"A name scope must be a string; got {name!r}."
        self.name = name
        self._bodies: list[Body | None] = []

    def __enter__(self) -> None:
        _enter(self._bodies)

    def __exit__(self, *exception: object) -> None:
        body = _leave(self._bodies)
        if body is not None:
            body.trace.name_scope(body.ops(), self.name)


class Attribute:
    """Attach `{key: value}` strings to named graph attributes of the ops in the body.

    Practically `Attribute(__outline={"layer": "name"})`, which steers the outlining of repeated layers. An
    inner value of a key hides the outer one until its body ends. Programs also enter and leave it from module
    hooks.
    """

    def __init__(self, **attributes: dict[str, str]) -> None:
        self._attributes = {name: dict(pairs) for name, pairs in attributes.items()}
        self._bodies: list[Body | None] = []

    def __enter__(self) -> None:
        _enter(self._bodies)

    def __exit__(self, *exception: object) -> None:
        body = _leave(self._bodies)
        if body is not None:
            body.trace.set_attributes(body.ops(), self._attributes)


def _enter(bodies: list[Body | None]) -> None:
    # A trace that failed between two module hooks never left its bodies: they belong to no trace any more.
    bodies[:] = [body for body in bodies if body is None or body.is_current]
    bodies.append(Body.begin())


def _leave(bodies: list[Body | None]) -> Body | None:
    body = bodies.pop() if bodies else None
    return body if body is not None and body.is_current else None
