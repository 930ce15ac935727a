"""What the operator's end-to-end stories share: an installation, an operator, managers, and watches that judge what users would see."""
