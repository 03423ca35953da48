"""The program in the terminal: the commands of ``python launch.py``. Read ``main`` first."""
