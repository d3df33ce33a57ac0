"""Processes on this machine: started together, watched, examined."""
