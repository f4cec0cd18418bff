"""How private one run is: Rényi divergences, privacy loss distributions, GDP."""
