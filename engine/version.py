"""The version of Trifold, engine and app alike: the only place that says it. See "Releases" in CONTRIBUTING.md."""

VERSION = "0.2.0"
