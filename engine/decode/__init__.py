"""How tokens are made: plain and speculative rounds, drafters, verification, and the controller that paces them."""
