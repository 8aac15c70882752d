"""The commands bench, verify, report and train, which nightingale.cli.commands looks up here."""
