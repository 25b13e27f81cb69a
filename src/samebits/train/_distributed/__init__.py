"""The processes of one run under torch.distributed."""
