"""One step on several devices: what each of them runs, what they tell each other, and what saves memory."""
