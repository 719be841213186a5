"""E"""
plot_trajectories = None
