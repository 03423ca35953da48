"""Serves the page of the app on this machine, and the requests that the page sends."""
