"""What the command line shows: reports for operators, and the demonstration."""
