"""The checklist behind `nightingale verify`: each check is a value, its bound and a verdict."""
