"""What the parties train on: samples, the datasets they come from, and their partition over parties."""
