"""Defines the version of Trifold, of engine and app alike. See "Releases" in CONTRIBUTING.md."""

VERSION = "0.2.0"
