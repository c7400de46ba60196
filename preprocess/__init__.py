"""From edges, features and labels to an artifact directory; ``pipeline`` composes the stages beside it."""
