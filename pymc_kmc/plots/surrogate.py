"""E"""
plot_surrogate = None
