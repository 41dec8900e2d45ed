"""NOT_MODELLED, which stands for every modelled result where no IPU Model is installed."""

from __future__ import annotations

import math
from typing import Any, Iterator

NONE_HERE = "no IPU Model here"


class _NotModelled:
    """A result that is not known: whatever you compute from it is not known either, as with NaN.

    Its attributes, items, calls and arithmetic give the object itself. It is false, contains nothing, equals nothing,
    is neither larger nor smaller than anything, and reads "no IPU Model here" in every format.
    """

    __slots__ = ()
    # numpy then leaves the operation to this object instead of making an array of it.
    __array_ufunc__ = None

    def __getattr__(self, name: str) -> Any:
        # Python and IPython look for optional protocols under such names: this object has none of them.
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def _itself(self, *_: object, **__: object) -> Any:
        return self

    __call__ = __getitem__ = _itself
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __pow__ = __rpow__ = _itself
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = _itself
    __matmul__ = __rmatmul__ = __and__ = __rand__ = __or__ = __ror__ = _itself
    __neg__ = __pos__ = __abs__ = __round__ = __floor__ = __ceil__ = __trunc__ = _itself
    __copy__ = __deepcopy__ = _itself

    def _never(self, _: object) -> bool:
        return False

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _never

    def __ne__(self, _: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __float__(self) -> float:
        return math.nan

    def __repr__(self) -> str:
        return NONE_HERE

    def __format__(self, _: str) -> str:
        return NONE_HERE

    def __reduce__(self) -> str:
        return "NOT_MODELLED"  # the one object of this module, after pickling too

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> Any:
        return NOT_MODELLED


NOT_MODELLED: Any = _NotModelled()
"""Stands for everything that only the IPU Model could give, where it is not installed."""
