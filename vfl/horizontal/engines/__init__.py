"""How a round's local training is computed: one client after the other, stacked, or over several processes."""
