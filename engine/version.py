"""Defines the version of Trifold, of engine and app alike. See "Releases" in CONTRIBUTING.md."""

__all__ = ["VERSION"]

VERSION = "0.2.0"
