"""What a prediction is made of and what would change it: traffic, what-if, suggestions, sweeps, marginal value."""
