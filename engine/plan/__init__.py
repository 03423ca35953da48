"""What fits where, and how long it takes on this machine: probes, costs, the plan."""
