"""What single lessons try out for real: small trainings, measurements, scripts that may fail."""
