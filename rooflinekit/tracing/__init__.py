"""nn.Module, or a whole training step → ops, through torch.fx. The only part that needs torch to read a network."""
