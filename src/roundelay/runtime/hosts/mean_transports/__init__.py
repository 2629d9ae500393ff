"""Ways in which means of everybody go between hosts: one abstract class, and a file for each way."""
