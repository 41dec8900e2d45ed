"""The MNIST pipelining program: model, settings, options, training and testing."""
