"""E"""
plot_proposals = None
