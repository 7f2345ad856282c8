"""DP-GIBO: private gradient-informed optimization for many parameters."""
