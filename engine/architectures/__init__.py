"""What is published of each kind of model: fields of config.json, names and shapes of tensors."""
