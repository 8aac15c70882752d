"""S3Gen's flow: speech tokens to mel frames by flow matching."""
