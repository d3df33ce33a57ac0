"""Studies: many trainings that answer a question, such as a paper's figures."""
