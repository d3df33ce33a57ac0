"""Components of packages: found by name, imported when chosen, refused in one line."""

import sys

import pytest
from refusals import refused, refuses

from vfl.config.registry import Registry

GROUP = "lvfl.tests"
THINGS = Registry(GROUP, "thing", {"ours": "collections:Counter"}, "a class")


def test_a_package_is_imported_when_its_component_is_chosen(install):
    install(GROUP, "strange_one", "class Thing: pass", theirs="Thing")
    assert THINGS.names() == ("ours", "theirs")
    assert THINGS.check("theirs") == "theirs"
    assert "strange_one" not in sys.modules
    assert THINGS.load("theirs").__module__ == "strange_one"
    assert THINGS.load("ours").__name__ == "Counter"


@pytest.mark.parametrize("name", ["ourss", "collections:Counter", "collections.Counter", "../ours", ""])
def test_an_unknown_name_is_no_place_where_code_is_looked_for(name, install):
    with pytest.raises(ValueError, match=f"unknown thing '{name}'; (did you mean 'ours'|known: ours)"):
        THINGS.load(name)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("Thing = 3", ("thing 'theirs' of package 'strange_two'", "'theirs'", "does")),
        ("def Thing(): pass", ("thing 'theirs' of package 'strange_two'", "'theirs'")),
        ("", ("thing 'theirs' of package 'strange_two'", "'strange_two:Thing'", "AttributeError")),
        ("raise OSError('two\\nlines')", ("thing 'theirs' of package 'strange_two'", "'strange_two:Thing'", "OSError")),
        ("class Thing(", ("thing 'theirs' of package 'strange_two'", "'strange_two:Thing'", "SyntaxError")),
    ],
)
def test_a_broken_component_gets_one_line(source, line, install, monkeypatch):
    monkeypatch.delitem(sys.modules, "strange_two", raising=False)
    install(GROUP, "strange_two", source, theirs="Thing")
    with refused(*line):
        THINGS.load("theirs", fits=lambda thing: isinstance(thing, type))


def test_two_packages_with_one_name_are_both_named(install):
    install(GROUP, "strange_three", "class Thing: pass", theirs="Thing")
    install(GROUP, "strange_four", "class Thing: pass", theirs="Thing", ours="Thing")
    refuses("thing 'theirs'", lambda: THINGS.load("theirs"), "'strange_three'", "'strange_four'")
    assert THINGS.load("ours").__name__ == "Counter"  # a name of ours cannot be taken


def test_a_process_may_add_its_own(install):
    things = Registry(GROUP, "thing", {"ours": "collections:Counter"}, "a class")
    things.add("mine", int)
    assert things.load("mine") is int
    refuses("thing 'ours'", lambda: things.add("ours", int), "taken")
    refuses("thing 'x' of this process", lambda: things.add("x", 3), "'x'")
