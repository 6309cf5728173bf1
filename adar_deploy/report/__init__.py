"""What `adar-deploy report` makes: facts gathered from a run, a bundle and a graph, and one page of them."""
