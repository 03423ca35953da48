"""How the starter's adapter is trained: books, question forms, lessons, network, training, asking."""
