"""Stands in for Horovod where it is not installed: `horovod.torch`, among the instances of `poprun` or alone.

An installed Horovod always comes first, as an installed PopART does.
"""

from pathlib import Path

from ipu_model.process import installed_instead

__path__: list[str] = []

if not installed_instead(__name__, __file__):
    import popdist

    __path__.append(str(Path(popdist.__file__).parent / "horovod"))
