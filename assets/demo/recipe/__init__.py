"""The recipe of the demo model: reads books, writes two small Llama folders. Start reading at `train.py` in the parent
folder.
"""
