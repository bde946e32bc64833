"""What a chat's request and answer are made of: messages, tools, and the parts of a reply."""
