"""Studies: many trainings that answer a question, as a paper's figures, and the timings of the software itself."""
