"""The arithmetic of optimisers as the device runs it: state, streamed numbers, and the update of every weight."""
