"""The numbers a program computes: replay of the captured graph, half precision, accumulation, output collection."""
