"""The user's working directory as each check sees it."""
