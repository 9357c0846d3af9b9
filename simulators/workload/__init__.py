"""What models are made of: operators by phase, and the bytes a replica must hold."""
