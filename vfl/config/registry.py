"""Registries of components that a configuration chooses by name: built-in ones, and those of installed packages.

A package offers its own by entry point, in the group of the registry:

    [project.entry-points."lvfl.feature_models"]
    my_model = "my_package.models:MyModel"

A name is looked up in this process's own installation and nowhere else: it is never a module, a path or anything that
a peer sends. A component is imported only when it is chosen, and one of another package only when its name is used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any, cast

from vfl.base.errors import ConfigError, nearest_name, with_type


@dataclass(frozen=True, eq=False)
class Registry:
    """The components of one kind, by name. No package can take one of the built-in names.

    A registry knows nothing of its components' types, so that code which components need can itself need registries:
    the caller of `load` or `make` states the required type.
    """

    group: str
    """Entry point group in which packages offer components."""
    what: str
    """Description of one component, such as "feature model"."""
    built_in: Mapping[str, str]
    """Built-in components: "module:attribute" by name, in the order in which they are shown."""
    contract: str
    """Contract that a component must keep; ends the error about one that does not."""
    added: dict[str, Any] = field(default_factory=dict[str, Any])
    """Components added in this process; see `add`."""

    def names(self) -> tuple[str, ...]:
        """Return all names: built in, added, offered by packages."""
        return tuple(dict.fromkeys((*self.built_in, *self.added, *_offered(self.group))))

    def check(self, name: str) -> str:
        """Return the name. Raises ValueError, with the nearest name or all of them, if it is unknown."""
        if name not in self.built_in and name not in self.names():  # ours first: no installed package need be read
            raise ValueError(f"unknown {self.what} {name!r}{nearest_name(name, self.names())}")
        return name

    def load(self, name: str, fits: Callable[[Any], bool] = callable) -> Any:
        """Return the component of that name; ``fits`` checks another package's as far as its contract can be checked.

        Raises ValueError, one line, for an unknown name, two packages with one name, and a component that cannot be
        imported or does not keep the contract.
        """
        if name in self.built_in:
            return resolve_name(self.built_in[name])
        return self.added[name] if self.check(name) in self.added else self._load_offered(name, fits)

    def make(self, name: str, *arguments: Any, of: type = object) -> Any:
        """Return an instance of type ``of``, made by the component of that name from the arguments.

        Raises ValueError as ``load`` does, and one line for whatever another package's component raises.
        """
        component = cast(Callable[..., Any], self.load(name))
        if name in self.built_in:
            return component(*arguments)
        return made_by_stranger(partial(component, *arguments), f"{self.what} {name!r}", self.contract, of)

    def add(self, name: str, component: object) -> None:
        """Add a component in this process only. Raises ValueError for a built-in name, or if it does not fit."""
        if name in self.built_in:
            raise ValueError(f"{self.what} {name!r}: the name is taken; choose another")
        self.added[name] = self._checked(name, "of this process", component, callable)

    def _load_offered(self, name: str, fits: Callable[[Any], bool]) -> Any:
        first, *others = _offered(self.group)[name]
        if others:
            rivals = " and ".join(_package(point) for point in (first, *others))
            raise ValueError(f"{self.what} {name!r}: {rivals} both offer it; uninstall one")
        origin = f"of {_package(first)}"
        try:
            component = first.load()
        except (Exception, SystemExit) as error:  # another package's code: whatever it raises
            reason = f"cannot import {first.value!r} ({with_type(error)})"
            raise ValueError(f"{self.what} {name!r} {origin}: {reason}") from None
        return self._checked(name, origin, component, fits)

    def _checked(self, name: str, origin: str, component: object, fits: Callable[[Any], bool]) -> Any:
        if not fits(component):
            raise ValueError(f"{self.what} {name!r} {origin}: {component!r} does not fit; it must be {self.contract}")
        return component


def is_own(kind: str) -> bool:
    """Return whether a kind of feature model names code and not a component."""
    return ":" in kind


def made_by_stranger(make: Callable[[], object], described: str, contract: str, of: type) -> Any:
    """Return the instance of type ``of`` that code of others makes.

    Raises ValueError, one line with the code's description and ``contract``, for whatever the code raises.
    """
    try:
        made = make()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"cannot be built ({with_type(error)})"
        raise ValueError(f"{described}: {reason}; it must be {contract}") from error
    if not isinstance(made, of):
        raise ValueError(f"{described}: gives {made!r}; it must be {contract}")
    return made


@cache
def _offered(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points of a group by name; several under one name if packages disagree."""
    offered: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=group):
        offered[point.name] = (*offered.get(point.name, ()), point)
    return offered


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name!r}" if point.dist is not None else "an unknown package"
