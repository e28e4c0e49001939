"""From a step that was measured on one device to the same network on another."""
