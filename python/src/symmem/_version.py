"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("symmem")
except PackageNotFoundError:
    __version__ = "0+checkout"  # run from its sources
