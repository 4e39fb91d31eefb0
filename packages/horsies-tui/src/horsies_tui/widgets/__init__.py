"""The widgets of the screens. They show what a screen has read, and never read by themselves."""
