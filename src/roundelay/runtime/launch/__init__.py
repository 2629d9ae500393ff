"""Start of learners, and the rendezvous of learners and hosts."""
