"""Mixed clusters on one machine: nodes are network namespaces, devices are paced processes."""
