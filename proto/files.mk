# What the daemon and its clients have in common.
BASE := proto/base/address.c proto/base/disk_cache.c proto/base/error.c
PROTO := $(BASE) $(call in,proto)
CGROUP := proto/base/cgroup.c
# The daemon's alone: they need libraries that a client has no use for.
LOG := $(CGROUP) proto/base/json_fd.c proto/base/log.c proto/base/log_limit.c proto/base/network.c
