"""The recipe of the demo model: books in, two small Llama folders out. Start reading at `train.py` beside it."""
