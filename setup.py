"""What pyproject.toml cannot say: two folders are installed under other names."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["vfl*", "parties*", "models*"]), "lvfl", "vfl.shipped_configs"],
    package_dir={"lvfl": "scripts", "vfl.shipped_configs": "configs"},
)
