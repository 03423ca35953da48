"""What can be known about an answer from the book: its quotations, its evidence, and what the book lacks."""
