"""What the switch refuses, watches or asks for."""
