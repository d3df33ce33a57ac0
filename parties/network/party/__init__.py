"""A party's process: it dials the server and carries out its orders."""
