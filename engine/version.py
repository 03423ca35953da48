"""The version of Trifold, engine and app alike: defined only here. See "Releases" in CONTRIBUTING.md."""

VERSION = "0.2.0"
