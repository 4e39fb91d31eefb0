"""The parts that screens are made of. Widgets never query: they are shown what a screen has loaded."""
