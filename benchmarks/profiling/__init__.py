"""Where a harvester's time goes: `timers` count, `stages` says what is timed, `child` is the harvester with timers."""
