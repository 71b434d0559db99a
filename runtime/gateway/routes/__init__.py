"""The routers, one file for each kind of resource."""
