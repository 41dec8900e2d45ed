"""What lesson 10 starts with ``poprun``: programs outside the lesson, so that no instance loads its figures."""
