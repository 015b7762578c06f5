# fccd, and the plug-in for data between nodes over RDMA, where its headers are.
NET := $(call in,daemon/net daemon/net/tcp)
DAEMON := $(call in,daemon daemon/common daemon/broker daemon/broker/metrics daemon/broker/nodes daemon/broker/share) $(LOG) $(NET) $(filter-out $(KERNELS),\
	$(call in,$(addprefix daemon/worker,/ /comm /comm/bound /comm/regroup /comm/request /device /device/cpu /device/gpu /device/gpu/code /engine /nodes /session /track)))
VERBS := $(filter-out daemon/net/verbs/plugin.c,$(call in,daemon/net/verbs))
VERBS_LIBS := $(shell pkg-config --libs librdmacm libibverbs hwloc 2>/dev/null)
VERBS_PLUGIN := $(if $(VERBS_LIBS),$(BUILD)/lib/fccd/verbs.so)

# Where fccd reads its configuration is built in: another SYSCONFDIR builds that file anew.
$(BUILD)/obj/daemon/common/config.o: CPPFLAGS += -DSYSCONFDIR='"$(SYSCONFDIR)"'
$(BUILD)/obj/daemon/common/config.o: $(BUILD)/sysconfdir
$(BUILD)/sysconfdir: FORCE
	@mkdir -p $(@D)
	@echo '$(SYSCONFDIR)' | cmp -s - $@ || echo '$(SYSCONFDIR)' >$@
FORCE:

$(BUILD)/bin/fccd: $(call objects,$(DAEMON) $(KERNELS) $(PROTO))
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) $(DAEMON_LIBS) -lm

VERBS_LINK = $(LINK) -shared -Wl,--version-script=daemon/net/verbs/plugin.map
$(BUILD)/lib/fccd/verbs.so: $(call objects,$(VERBS) daemon/net/verbs/plugin.c $(NET) proto/base/network.c proto/base/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(VERBS_LINK) $(VERBS_LIBS)

.PHONY: plugins
plugins: $(PLUGINS) $(VERBS_PLUGIN)
	$(if $(VERBS_LIBS),,@echo 'left out: the verbs plug-in (no libibverbs, librdmacm and hwloc)')
	$(if $(SAN)$(NVCC),,@echo 'left out: the cuda plug-in (no nvcc)')
	$(if $(SAN)$(HIPCC),,@echo 'left out: the hip plug-in (no hipcc)')
