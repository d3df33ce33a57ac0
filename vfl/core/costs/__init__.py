"""The costs of rounds: what was counted, what is forecast, who chooses the ratios, what parties report."""
