"""The start of the pretrained model: nodes and targets of any graph, in closed form."""
