"""The day-03 program: an image classifier trained on CIFAR-10, faster by one setting at a time."""
