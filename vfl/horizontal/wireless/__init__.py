"""A wireless cell: a base station, its devices, and the scheduling of a shared uplink band (FLARE)."""
