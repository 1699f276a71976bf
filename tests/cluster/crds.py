"""What the tests of our CRDs share."""

STRICT = {"fieldValidation": "Strict"}
AMOUNT = 'must be an amount such as 16, "0.5" or "2/7", not negative'
