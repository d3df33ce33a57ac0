"""Who is who on the network: certificates of the server and the parties, and the files that hold them."""
