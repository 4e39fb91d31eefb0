"""The parts of `bench day`: the app, its worker, a client, a dashboard, what is sampled, and how growth is judged."""
