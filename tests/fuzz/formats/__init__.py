"""Every file that is opened, changed at random: `mutate` changes it, `kinds` makes and opens each format."""
