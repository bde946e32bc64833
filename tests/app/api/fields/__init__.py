"""Every field of every route as data: what it takes, what it refuses, and how it is named then."""
