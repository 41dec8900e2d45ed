"""The course's site: lessons, documents and API as pages that need neither a server nor a network."""
