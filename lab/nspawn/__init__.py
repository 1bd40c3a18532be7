"""systemd nodes in seconds, without a VM: each a captured machine, reached by SSH. The command is lab/nspawnctl."""
