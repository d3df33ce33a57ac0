"""A cell: a base station, its devices, and who may send over how much of a shared uplink band (FLARE)."""
