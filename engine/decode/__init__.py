"""Makes tokens: plain and speculative rounds, drafters, verification, and the controller that chooses each round's
plan.
"""
