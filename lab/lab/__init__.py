"""The lab: two virtual machines with a real RDMA kernel stack; see labctl."""
