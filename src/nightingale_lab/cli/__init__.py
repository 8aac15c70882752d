"""The commands bench, verify, report and train, which nightingale.cli.main looks up here."""
