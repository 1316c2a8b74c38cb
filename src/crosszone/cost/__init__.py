"""What one thing costs: compute, memory, collectives, links; profiles hold the coefficients."""
