"""The report in a real browser: a package, so that one browser serves all of its tests and is closed behind them."""
