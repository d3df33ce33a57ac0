"""Costs and savings of a round: forecast, measurement, ledger, controllers."""
