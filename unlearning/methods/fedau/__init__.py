"""FedAU: the auxiliary head trained after the fact or during learning."""
