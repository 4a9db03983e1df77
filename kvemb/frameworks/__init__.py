"""What PyTorch's modules and Keras' layers share. Imports no framework."""
