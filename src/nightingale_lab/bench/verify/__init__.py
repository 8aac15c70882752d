"""The checks of `nightingale verify`: each is a value with a bound and a verdict."""
