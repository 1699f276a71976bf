"""Where the ledgers of quotas are kept, and how the reviews of one namespace share one write."""
