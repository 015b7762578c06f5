# fccd: make help says what there is. Everything that is built lies in build/ (build/san-NAME/ for the sanitizers).

PREFIX ?= /usr/local
DESTDIR ?=
# The places of an installation stand in units, a script's text and a program: what would be misread there is refused.
place_is_odd = $(or $(if $(strip $(1)),,nothing),$(filter-out /%,$(1)),$(word 2,$(1)),$(findstring &,$(1)),$(findstring |,$(1)),$(findstring \,$(1)),\
	$(findstring %,$(1)),$(findstring ",$(1)),$(findstring ',$(1)),$(findstring `,$(1)),$(findstring ;,$(1)),$(findstring ~,$(1)))
ifneq ($(filter install uninstall,$(MAKECMDGOALS)),)
$(foreach place,PREFIX $(if $(value SYSCONFDIR),SYSCONFDIR) $(if $(value SYSTEMDDIR),SYSTEMDDIR),$(if $(call place_is_odd,$($(place))),\
	$(error $(place)=$($(place)): allowed is an absolute path without blanks, quotes and & | \ % ; ~)))
override PREFIX := $(patsubst %/,%,$(abspath $(PREFIX)))
endif
# The system's own folders for what belongs to the system; elsewhere all is below PREFIX.
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
SYSTEMDDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/usr/lib,$(PREFIX)/lib)
SAN ?=
VERSION := 0.1.0
SOVERSION := 0

comma := ,
BUILD := build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))
CC := gcc
# V=1 shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),,@echo "  $(1)  $@")

# ---- what is needed from Debian ------------------------------------------------------------------------------------

PACKAGES_BUILD := gcc libc6-dev make pkg-config libevent-dev libjson-c-dev libsystemd-dev libopenblas-pthread-dev libssl-dev scdoc \
	libibverbs-dev librdmacm-dev libhwloc-dev
PACKAGES_TEST := libcmocka-dev python3 python3-venv iproute2
PACKAGES_LINT := clang-format clang-tidy cppcheck mypy
PACKAGES_GPU := hipcc llvm-15 clang-tools-15 python3-venv
PACKAGES_LAUNCHERS := openmpi-bin openssh-client mpich slurmctld slurmd slurm-client munge python3-torch
# iproute2 has rdma(8); Debian's kernel for the guests and a busybox are fetched, not installed.
PACKAGES_RDMA := qemu-system-x86 iproute2 ibverbs-providers kmod cpio python3
PACKAGES_BENCH := openmpi-bin libopenmpi-dev python3
PACKAGES_BENCH_NODES := iperf3 iproute2 python3

# OpenBLAS's build with locks, loaded at run time with its threads off: kernels/blas.h says why.
BLAS_DIR := /usr/lib/$(shell $(CC) -print-multiarch 2>/dev/null)/openblas-pthread
BLAS_LIBRARY := $(BLAS_DIR)/libopenblas.so.0
BLAS_CFLAGS = $(shell PKG_CONFIG_PATH=$(BLAS_DIR)/pkgconfig pkg-config --cflags openblas)
BLAS_LIBS = $(shell PKG_CONFIG_PATH=$(BLAS_DIR)/pkgconfig pkg-config --libs openblas) -Wl,-rpath,$(BLAS_DIR)
DAEMON_LIBS = $(shell pkg-config --libs libevent_core json-c libsystemd libcrypto)

# ---- flags ---------------------------------------------------------------------------------------------------------

WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-align -Wvla $(if $(WERROR),-Werror)
CPPFLAGS += -D_GNU_SOURCE -Iclient -Iproto -Ikernels -Idaemon -Iclient/fccctl
# Instrumented for undefined behaviour, code takes gcc twice as long at -O2.
OPTIMIZE := $(if $(findstring undefined,$(SAN)),-O1,-O2)
CFLAGS += -std=gnu11 -g -fPIC -fno-math-errno -pthread $(WARNINGS) $(OPTIMIZE)
LDFLAGS += -pthread -Wl,-z,relro,-z,now
ifeq ($(SAN),)
CPPFLAGS += -D_FORTIFY_SOURCE=2
CFLAGS += -fstack-protector-strong
else
CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer $(if $(findstring undefined,$(SAN)),-fno-sanitize-recover=all)
LDFLAGS += -fsanitize=$(SAN)
endif

# ---- sources -------------------------------------------------------------------------------------------------------

PROTO := proto/address.c proto/error.c proto/msg.c proto/sealed.c proto/variables.c
KERNELS := kernels/all_to_all.c kernels/blas.c kernels/dense.c kernels/dtype.c kernels/embedding_all_to_all.c kernels/gemm_all_to_all.c \
	kernels/gemv_all_reduce.c kernels/gemv_nodes.c kernels/gemv_words.c kernels/gpu_call.c kernels/noop.c kernels/op.c kernels/plan.c kernels/pool.c kernels/tensor.c kernels/thin.c kernels/view.c
NET := daemon/worker/net_region.c daemon/worker/net_tcp.c daemon/worker/net_tcp_receive.c daemon/worker/proxy.c daemon/worker/proxy_connections.c
DAEMON := daemon/main.c daemon/auth.c daemon/denial.c daemon/cluster.c daemon/config.c daemon/gpus.c daemon/json_fd.c daemon/log.c daemon/log_limit.c daemon/network.c daemon/plugin.c daemon/text_file.c \
	daemon/broker/background.c daemon/broker/broker.c daemon/broker/charge.c daemon/broker/child.c daemon/broker/groups.c daemon/broker/hello.c daemon/broker/job.c daemon/broker/listen.c daemon/broker/node.c \
	daemon/broker/node_conn.c daemon/broker/node_denial.c daemon/broker/node_link.c daemon/broker/node_open.c daemon/broker/node_peer.c daemon/broker/node_ping.c daemon/broker/node_query.c \
	daemon/broker/node_resolve.c daemon/broker/node_trouble.c daemon/broker/probe.c daemon/broker/query.c daemon/broker/spawn.c daemon/broker/visitor.c \
	daemon/worker/buffer.c daemon/worker/comm.c daemon/worker/comm_join.c daemon/worker/control.c daemon/worker/deadline.c daemon/worker/device.c \
	daemon/worker/cpu_early.c daemon/worker/cpu_execute.c daemon/worker/device_cpu.c daemon/worker/device_gpu.c daemon/worker/gpu_lanes.c daemon/worker/gpu_leave.c daemon/worker/gpu_node.c daemon/worker/gpu_nodes.c daemon/worker/gpu_parts.c daemon/worker/gpu_stream.c daemon/worker/gpu_watch.c \
	daemon/worker/helpers.c daemon/worker/life.c daemon/worker/process.c \
	daemon/worker/launch.c daemon/worker/launch_early.c daemon/worker/launch_make.c daemon/worker/meeting.c daemon/worker/net_choose.c $(NET) daemon/worker/nodes.c daemon/worker/nodes_alloc.c daemon/worker/nodes_data.c daemon/worker/nodes_deny.c daemon/worker/nodes_end.c daemon/worker/nodes_form.c daemon/worker/nodes_links.c daemon/worker/nodes_rails.c daemon/worker/nodes_shadow.c daemon/worker/nodes_triggers.c daemon/worker/offers.c daemon/worker/overlap.c daemon/worker/peer.c daemon/worker/peer_connect.c daemon/worker/prepared.c daemon/worker/prepared_make.c daemon/worker/puts.c daemon/worker/puts_check.c daemon/worker/query.c daemon/worker/ring.c daemon/worker/session.c daemon/worker/session_messages.c daemon/worker/submission.c \
	daemon/worker/tune.c daemon/worker/unformed.c daemon/worker/worker.c
DAEMON += daemon/account.c daemon/cgroup.c daemon/broker/channel.c daemon/broker/user.c daemon/worker/memory.c daemon/worker/rights.c
DAEMON += daemon/worker/peer_check.c
CLIENT := client/accelerator.c client/buffer.c client/call.c client/comm.c client/comm_env.c client/completion.c client/connect.c client/core.c client/driver.c \
	client/env.c client/error.c client/group.c client/hostlist.c client/offer.c client/operators.c client/prepared.c client/prepared_run.c client/process.c client/put.c client/pool.c client/refusal.c client/ring.c client/stream.c client/symmetric.c client/wait.c client/watch.c client/words.c
CLIENT += client/prepared_plan.c
FCCCTL_COMMON := client/fccctl/args.c client/fccctl/bench_check.c client/fccctl/bench_data.c client/fccctl/control.c \
	client/fccctl/field.c client/fccctl/format.c client/fccctl/local.c client/fccctl/local_nodes.c client/fccctl/shape.c client/fccctl/table.c
FCCCTL := $(FCCCTL_COMMON) client/fccctl/bench.c client/fccctl/bench_place.c client/fccctl/bench_rank.c client/fccctl/bench_report.c \
	client/fccctl/comms.c client/fccctl/devices.c client/fccctl/doctor.c client/fccctl/doctor_daemon.c client/fccctl/doctor_gpus.c \
	client/fccctl/doctor_machine.c client/fccctl/doctor_mps.c client/fccctl/doctor_nodes.c client/fccctl/doctor_socket.c \
	client/fccctl/main.c client/fccctl/nodes.c client/fccctl/plan_verb.c client/fccctl/status.c client/fccctl/trace.c \
	client/fccctl/trace_chrome.c client/fccctl/trace_svg.c client/fccctl/workers.c
MAN := daemon/fccd.8 daemon/fccd.conf.5 client/fccctl/fccctl.1 client/libfccclient.3

objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

.PHONY: all plugins demo demo-run test check check-build test-rdma check-rdma test-rdma-if test-python deps-rdma check-gpu-code bench bench-run bench-nodes bench-nodes-run bench-rdma bench-rdma-run bench-gpu lint lint-run man install uninstall clean help FORCE deps deps-gpu deps-lint deps-bench deps-bench-nodes deps-launchers
all: $(BUILD)/bin/fccd $(BUILD)/bin/fccctl $(BUILD)/lib/libfccclient.so $(BUILD)/bin/example_gemv $(BUILD)/bin/example_env plugins

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/obj/kernels/%.o: OPTIMIZE := $(if $(findstring undefined,$(SAN)),-O1,-O3)
$(BUILD)/obj/kernels/%.o: CPPFLAGS += $(BLAS_CFLAGS) -DFCC_BLAS_LIBRARY='"$(BLAS_LIBRARY)"'
$(BUILD)/obj/daemon/worker/%.o: CPPFLAGS += -Idaemon/worker
$(BUILD)/obj/daemon/broker/%.o: CPPFLAGS += -Idaemon/broker

# Where fccd reads its configuration is built in: another SYSCONFDIR builds that file anew.
$(BUILD)/obj/daemon/config.o: CPPFLAGS += -DSYSCONFDIR='"$(SYSCONFDIR)"'
$(BUILD)/obj/daemon/config.o: $(BUILD)/sysconfdir
$(BUILD)/sysconfdir: FORCE
	@mkdir -p $(@D)
	@echo '$(SYSCONFDIR)' | cmp -s - $@ || echo '$(SYSCONFDIR)' >$@
FORCE:

$(BUILD)/bin/fccd: $(call objects,$(DAEMON) $(KERNELS) $(PROTO))
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $^ -o $@ $(DAEMON_LIBS) -lm

$(BUILD)/lib/libfccclient.so.$(VERSION): $(call objects,$(CLIENT) $(PROTO)) client/libfccclient.map
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libfccclient.so.$(SOVERSION) \
		-Wl,--version-script=client/libfccclient.map $(filter %.o,$^) -o $@

$(BUILD)/lib/libfccclient.so: $(BUILD)/lib/libfccclient.so.$(VERSION)
	$(Q)ln -sf libfccclient.so.$(VERSION) $(BUILD)/lib/libfccclient.so.$(SOVERSION)
	$(Q)ln -sf libfccclient.so.$(SOVERSION) $@

LINK_CLIENT = -L$(BUILD)/lib -lfccclient -Wl,-rpath,'$$ORIGIN/../lib'

$(BUILD)/bin/fccctl: $(call objects,$(FCCCTL) $(KERNELS) $(PROTO)) $(BUILD)/lib/libfccclient.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LINK_CLIENT) $(shell pkg-config --libs json-c) -lm

$(addprefix $(BUILD)/bin/,example_env example_gemv): $(BUILD)/bin/%: $(BUILD)/obj/client/%.o $(BUILD)/lib/libfccclient.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LINK_CLIENT)


# ---- GPU plug-ins: each where its compiler is found -------------------------------------------------------------------

NVCC ?= $(firstword $(shell command -v nvcc /usr/local/cuda/bin/nvcc 2>/dev/null))
HIPCC ?= $(shell command -v hipcc 2>/dev/null)
CUDA_TARGETS := -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=[sm_80,compute_80]
# gfx942, where the compiler knows it (LLVM 17 does, Debian 12's 15 does not).
HIP_TARGETS = --offload-arch=gfx90a,gfx940,gfx1030$(if $(shell $(HIPCC) --offload-arch=gfx942 -E -x hip /dev/null -o /dev/null 2>/dev/null && echo yes),$(comma)gfx942)
GPU_SOURCES := kernels/embedding_all_to_all.hip kernels/gemm_all_to_all.hip kernels/gemv_all_reduce.hip kernels/gpu_direct.hip kernels/gpu_launch.hip \
	kernels/gpu_memory.hip kernels/gpu_plugin.hip kernels/gpu_prepared.hip
GPU_CPPFLAGS := -D_GNU_SOURCE -Iclient -Iproto -Ikernels
PLUGINS := $(if $(SAN),,$(if $(NVCC),$(BUILD)/lib/fccd/cuda.so) $(if $(HIPCC),$(BUILD)/lib/fccd/hip.so))

$(BUILD)/obj/cuda/%.o: %.hip Makefile
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) -std=c++17 -O3 -g -x cu $(CUDA_TARGETS) $(GPU_CPPFLAGS) \
		-Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra$(if $(WERROR),$(comma)-Werror) $(if $(WERROR),-Werror all-warnings) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/obj/hip/%.o: %.hip Makefile
	@mkdir -p $(@D)
	$(call say,HIPCC)
	$(Q)$(HIPCC) -std=c++17 -O3 $(HIP_TARGETS) $(GPU_CPPFLAGS) -fPIC -fvisibility=hidden -Wall -Wextra $(if $(WERROR),-Werror) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/lib/fccd/cuda.so: $(patsubst %.hip,$(BUILD)/obj/cuda/%.o,$(GPU_SOURCES)) $(call objects,proto/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(NVCC) -shared -cudart static $(CUDA_TARGETS) -Xlinker -z,relro,-z,now $^ -o $@
$(BUILD)/lib/fccd/hip.so: $(patsubst %.hip,$(BUILD)/obj/hip/%.o,$(GPU_SOURCES)) $(call objects,proto/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(HIPCC) -shared $(HIP_TARGETS) -Wl,-z,relro,-z,now $^ -o $@

# ---- data between nodes over RDMA: where its headers are -----------------------------------------------------------------

VERBS := $(addprefix daemon/worker/,net_verbs.c net_verbs_address.c net_verbs_connect.c net_verbs_device.c net_verbs_grant.c net_verbs_keys.c net_verbs_near.c net_verbs_notice.c net_verbs_places.c net_verbs_receive.c net_verbs_socket.c)
VERBS_LIBS := $(shell pkg-config --libs librdmacm libibverbs hwloc 2>/dev/null)
VERBS_PLUGIN := $(if $(VERBS_LIBS),$(BUILD)/lib/fccd/verbs.so)

$(BUILD)/lib/fccd/verbs.so: $(call objects,$(VERBS) daemon/worker/net_verbs_plugin.c $(NET) daemon/network.c proto/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,--version-script=daemon/worker/net_plugin.map $^ -o $@ $(VERBS_LIBS)

plugins: $(PLUGINS) $(VERBS_PLUGIN)
	$(if $(VERBS_LIBS),,@echo 'left out: the verbs plug-in (no libibverbs, librdmacm and hwloc)')
	$(if $(SAN)$(NVCC),,@echo 'left out: the cuda plug-in (no nvcc)')
	$(if $(SAN)$(HIPCC),,@echo 'left out: the hip plug-in (no hipcc)')

# ---- man pages -----------------------------------------------------------------------------------------------------

man: $(addprefix $(BUILD)/man/,$(notdir $(MAN)))
$(BUILD)/man/%: daemon/%.scd
	@mkdir -p $(@D)
	$(call say,MAN)
	$(Q)scdoc < $< > $@
$(BUILD)/man/%: client/fccctl/%.scd
	@mkdir -p $(@D)
	$(call say,MAN)
	$(Q)scdoc < $< > $@
$(BUILD)/man/%: client/%.scd
	@mkdir -p $(@D)
	$(call say,MAN)
	$(Q)scdoc < $< > $@

# ---- tests ---------------------------------------------------------------------------------------------------------
# UNIT tests need no daemon; SYSTEM tests start their own. Those that take longest come first, so that none is alone at the end.

UNIT := kernels plan lanes helpers inline arguments core client client_gpu client_groups client_stream client_submit client_waits env hostlist reference config variables log auth fifo account net net_refused proxy proxy_forget proxy_rails $(if $(VERBS_LIBS),net_near net_places net_verbs net_verbs_ends)
SYSTEM := early kills visitors descriptors limits gpu_worker gpu_worker_sums gpu_worker_nodes gpu_worker_nodes_ends fccctl fccctl_trace gpu_worker_words gpu_worker_errors gpu_worker_prepared_ends launchers netns peers peers_many node_faults nodes node_rails handover forming operators views routes symmetric puts puts_ends puts_refused service errors overlap chains results refusals joins denials comms meetings pool jobs users forks header protocol plugins retire root_names gpu_worker_ahead gpu_worker_ahead_ends gpu_worker_ends gpu_worker_join gpu_worker_machines gpu_worker_offers gpu_worker_offers_ends gpu_worker_offers_kinds gpu_worker_outlive gpu_worker_prepared gpu_worker_refusals gpu_worker_shown
NODES_BENCH := $(addprefix $(BUILD)/tests/,net_stream comm_init)
RDMA_TESTS := test_operators test_node_faults test_net_verbs test_net_verbs_ends test_gpu_worker_nodes_ends test_gpu_worker_machines
GPU_SYSTEM := gpu_errors gpu_groups gpu_jobs gpu_offers gpu_prepared gpu_prepared_ends gpu_ranks gpu_stream
# The sanitizers leave out what others start, which are programs that other tests have; thread sanitizer those of one thread that take long.
LAUNCHED := launchers root_names
UNIT += client_trust prepared_plan
SYSTEM += fccctl_answers gpu_worker_leave gpu_worker_posted ids_again node_messages protocol_forming
SYSTEM += doctor gpu_worker_overlap gpu_worker_plugin texts
SYSTEM += channel quota rights names node_permits constrained leaks
ONE_THREAD := kernels plan lanes core hostlist
TEST_BINARIES := $(addprefix $(BUILD)/tests/test_,$(filter-out $(if $(SAN),$(LAUNCHED)) $(if $(filter thread,$(SAN)),$(ONE_THREAD)),kernels $(SYSTEM) $(filter-out kernels,$(UNIT))))
GPU_BINARIES := $(addprefix $(BUILD)/tests/test_,$(GPU_SYSTEM))
TEST_JOBS ?= 4
LINK_TEST = $(CC) $(CFLAGS) $(LDFLAGS) $(filter %.o,$^) -o $@
DEMO_COMMON := tests/demo/number.c tests/demo/reference.c

BENCH_BINARIES := $(if $(PLUGINS),$(BUILD)/tests/gpu_kernels)

$(TEST_BINARIES) $(GPU_BINARIES): | $(BUILD)/tests
$(BUILD)/tests:
	@mkdir -p $@
$(BUILD)/obj/tests/%.o: CPPFLAGS += -Itests -Itests/demo
$(BUILD)/obj/tests/test_env.o: CPPFLAGS += -Idaemon/worker

$(addprefix $(BUILD)/tests/test_,plan prepared_plan kernels arguments): $(BUILD)/tests/test_%: $(call objects,$(KERNELS) $(PROTO) daemon/plugin.c) $(BUILD)/obj/tests/test_%.o
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka -lm
$(BUILD)/tests/test_client_waits: LINK_TEST += -Wl,--wrap=patience_ms
$(addprefix $(BUILD)/tests/test_,client client_gpu client_groups client_stream client_submit client_trust client_waits): $(BUILD)/tests/test_%: $(call objects,$(CLIENT) $(PROTO)) $(BUILD)/obj/tests/test_%.o
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka
$(BUILD)/tests/test_hostlist: $(call objects,client/hostlist.c proto/address.c proto/error.c tests/test_hostlist.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka
$(BUILD)/tests/test_core: $(call objects,client/core.c client/wait.c tests/test_core.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) -Wl,--wrap=sched_setaffinity -Wl,--wrap=sched_getcpu -Wl,--wrap=sched_yield -lcmocka
$(BUILD)/tests/test_env: $(call objects,$(CLIENT) $(PROTO) daemon/worker/meeting.c) $(BUILD)/obj/tests/test_env.o
	$(call say,LD)
	$(Q)$(LINK_TEST) $(shell pkg-config --libs libcrypto) -lcmocka
FAKE_DRIVERS := $(addprefix $(BUILD)/tests/fake_driver/,libcuda.so.1 libamdhip64.so.5)
$(FAKE_DRIVERS): $(BUILD)/obj/tests/fake_driver.o
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared $< -o $@
$(addprefix $(BUILD)/tests/test_,client_gpu client_groups client_stream client_waits): | $(FAKE_DRIVERS)
$(BUILD)/tests/test_lanes: $(call objects,daemon/worker/gpu_lanes.c tests/test_lanes.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka
$(BUILD)/tests/test_helpers: $(call objects,daemon/worker/helpers.c proto/error.c tests/test_helpers.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka
$(BUILD)/tests/test_inline: $(call objects,$(filter-out daemon/main.c,$(DAEMON)) $(KERNELS) $(PROTO) tests/test_inline.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) $(DAEMON_LIBS) -lcmocka -lm
$(BUILD)/tests/test_reference: $(call objects,$(DEMO_COMMON) tests/demo/test_reference.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka -lm
CONFIG := daemon/cgroup.c daemon/cluster.c daemon/config.c daemon/log.c daemon/log_limit.c daemon/network.c daemon/text_file.c proto/error.c proto/variables.c
$(BUILD)/tests/test_config: $(call objects,$(CONFIG) tests/test_config.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) $(shell pkg-config --libs json-c) -lcmocka
$(BUILD)/tests/test_log: $(call objects,daemon/log.c daemon/log_limit.c proto/error.c tests/test_log.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) $(shell pkg-config --libs json-c) -lcmocka
$(BUILD)/tests/test_variables: $(call objects,proto/variables.c tests/test_variables.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka
$(BUILD)/tests/test_account: $(call objects,daemon/account.c daemon/cgroup.c proto/error.c tests/test_account.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka
# The broker with a relay for workers: tests/relay_broker.c.
RELAY_BROKER := $(BUILD)/tests/relay_broker
$(RELAY_BROKER): $(call objects,tests/relay_broker.c $(filter-out daemon/main.c daemon/worker/%,$(DAEMON)) $(PROTO)) | $(BUILD)/tests
	$(call say,LD)
	$(Q)$(LINK_TEST) $(DAEMON_LIBS)
$(addprefix $(BUILD)/tests/test_,peers peers_many retire): | $(RELAY_BROKER)
$(BUILD)/tests/test_auth: $(call objects,daemon/auth.c daemon/cluster.c daemon/denial.c daemon/text_file.c proto/error.c tests/test_auth.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka $(shell pkg-config --libs libcrypto)
$(addprefix $(BUILD)/tests/test_,fifo net net_refused proxy proxy_forget proxy_rails): $(BUILD)/tests/test_%: $(call objects,$(NET) proto/error.c) $(BUILD)/obj/tests/test_%.o
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka
$(BUILD)/tests/test_net_near: $(call objects,daemon/worker/net_verbs_near.c tests/test_net_near.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka $(shell pkg-config --libs hwloc)
$(BUILD)/tests/test_net_places: $(call objects,daemon/network.c daemon/worker/net_verbs_near.c daemon/worker/net_verbs_places.c proto/error.c tests/test_net_places.c)
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka $(shell pkg-config --libs hwloc)
# The verbs plug-in with a way to break queue pairs.
FAULTY_VERBS := $(if $(VERBS_LIBS),$(BUILD)/tests/faulty_plugin/verbs.so)
$(BUILD)/tests/faulty_plugin/verbs.so: $(call objects,tests/verbs_faults.c $(VERBS) $(NET) daemon/network.c proto/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,--version-script=daemon/worker/net_plugin.map $^ -o $@ $(VERBS_LIBS)
$(BUILD)/tests/test_node_faults: | $(FAULTY_VERBS)
$(BUILD)/tests/test_node_rails: | $(BUILD)/tests/test_operators
# In its place: an adapter that is none, which writes into fake GPUs' memory.
DIRECT_VERBS := $(BUILD)/tests/direct_plugin/verbs.so
$(DIRECT_VERBS): $(call objects,tests/direct_verbs.c $(NET) proto/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,--wrap=net_regions_hold -Wl,--version-script=daemon/worker/net_plugin.map $^ -o $@
$(BUILD)/tests/test_gpu_worker_nodes: | $(DIRECT_VERBS)
$(addprefix $(BUILD)/tests/test_,net_verbs net_verbs_ends): $(BUILD)/tests/test_%: $(call objects,$(VERBS) $(NET) daemon/network.c proto/error.c) $(BUILD)/obj/tests/test_%.o
	$(call say,LD)
	$(Q)$(LINK_TEST) -lcmocka $(VERBS_LIBS)
$(addprefix $(BUILD)/obj/tests/,test_lanes.o test_helpers.o test_inline.o test_fifo.o test_net_verbs.o test_net_verbs_ends.o test_net_near.o test_net_places.o test_net.o test_net_refused.o test_proxy.o verbs_faults.o bench/net_bench.o bench/net_stream.o): CPPFLAGS += -Idaemon/worker
$(addprefix $(BUILD)/obj/tests/,test_fifo.o test_net_verbs.o test_net_verbs_ends.o test_net_near.o test_net_places.o test_net.o test_net_refused.o test_proxy.o verbs_faults.o direct_verbs.o bench/net_bench.o bench/net_stream.o): CPPFLAGS += -Idaemon/worker
$(addprefix $(BUILD)/obj/tests/,test_fifo.o test_net_verbs.o test_net.o test_net_refused.o test_proxy.o test_proxy_forget.o test_proxy_rails.o test_handover.o test_forming.o test_ids_again.o test_node_messages.o test_root_names.o bench/net_bench.o bench/net_stream.o): CPPFLAGS += -Idaemon/worker
$(addprefix $(BUILD)/tests/test_,$(SYSTEM) $(GPU_SYSTEM)): $(BUILD)/tests/test_%: $(call objects,tests/daemons.c tests/harness.c tests/program.c tests/raw.c proto/msg.c proto/error.c) \
		$(BUILD)/obj/tests/test_%.o $(call objects,$(DEMO_COMMON)) $(BUILD)/lib/libfccclient.so
	$(call say,LD)
	$(Q)$(LINK_TEST) $(LINK_CLIENT) $(shell pkg-config --libs json-c) -lcmocka -lm $(LDLIBS)

# fccd as it will be when nodes have a new version of what they say to each other.
OTHER_VERSION := $(BUILD)/tests/fccd_other_version
$(BUILD)/obj/tests/other_version.o: daemon/auth.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) -DAUTH_VERSION=10001u $(CFLAGS) -MMD -MP -c $< -o $@
$(OTHER_VERSION): $(BUILD)/obj/tests/other_version.o $(call objects,$(filter-out daemon/auth.c,$(DAEMON)) $(KERNELS) $(PROTO)) | $(BUILD)/tests
	$(call say,LD)
	$(Q)$(LINK_TEST) $(DAEMON_LIBS) -lm

SLOW_NAMES := $(BUILD)/tests/slow_names.so
$(SLOW_NAMES): $(call objects,tests/slow_names.c) | $(BUILD)/tests
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared $^ -o $@
$(BUILD)/tests/test_names: | $(SLOW_NAMES)
$(BUILD)/tests/test_launchers: $(call objects,tests/slurm.c)
$(BUILD)/tests/test_views: $(call objects,kernels/view.c)
$(BUILD)/tests/test_denials: $(call objects,daemon/auth.c daemon/cluster.c daemon/denial.c daemon/text_file.c) | $(OTHER_VERSION)
$(BUILD)/tests/test_denials: LDLIBS += $(shell pkg-config --libs libcrypto)
$(BUILD)/tests/test_netns: $(call objects,tests/spaces.c tests/wire.c)
$(addprefix $(BUILD)/tests/test_,handover forming ids_again node_messages root_names): $(call objects,daemon/account.c $(filter-out proto/error.c,$(CONFIG)))

# The same assertions again on GPUs, for every plug-in that was built; without a GPU they say so.
GPU_TESTS := $(if $(SAN),,$(foreach kind,$(patsubst $(BUILD)/lib/fccd/%.so,%,$(PLUGINS)),$(addprefix $(kind):$(BUILD)/tests/test_,kernels operators routes $(if $(filter cuda,$(kind)),$(GPU_SYSTEM)))))

# A GPU plug-in without a GPU, for the worker's side of it under the sanitizers.
FAKE_GPU := tests/fake_gpu.c tests/fake_gpu_kernel.c tests/fake_gpu_memory.c tests/fake_gpu_nodes.c tests/fake_gpu_prepared.c tests/fake_gpu_side.c
FAKE_PLUGIN := $(BUILD)/tests/fake_plugin/cuda.so
$(FAKE_PLUGIN): $(call objects,$(FAKE_GPU) proto/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared $^ -o $@
$(addprefix $(BUILD)/tests/test_,$(filter gpu_worker%,$(SYSTEM))): | $(FAKE_PLUGIN) $(FAKE_DRIVERS)

# Installs what is missing, builds, and runs every test. SAN=address, undefined, address,undefined or thread: the same under these sanitizers.
test: deps
	@$(MAKE) --no-print-directory check
	$(if $(SAN),,@$(MAKE) --no-print-directory test-rdma-if)
	$(if $(SAN),,@$(MAKE) --no-print-directory test-python)
check: check-build
	$(if $(SAN),,tests/bench/test_compare_gpu)
	$(if $(SAN),,@BUILD=$(BUILD) tests/words)
	@BUILD=$(BUILD) JOBS=$(TEST_JOBS) tests/run $(TEST_BINARIES) $(GPU_TESTS)

check-build: all $(TEST_BINARIES) $(GPU_BINARIES) $(BENCH_BINARIES)

# Two kernels in QEMU (emulated, so anywhere), joined by soft-RoCE: data between nodes over real verbs.
test-rdma: deps deps-rdma
	@$(MAKE) --no-print-directory check-rdma
check-rdma: all $(addprefix $(BUILD)/tests/,$(RDMA_TESTS))
	tests/rdma/guests --build $(BUILD) --kernel build/rdma --tests '$(RDMA_TESTS)'
# Figures of the same two machines, emulated.
bench-rdma: deps deps-rdma
	@$(MAKE) --no-print-directory bench-rdma-run
bench-rdma-run: all $(NODES_BENCH)
	tests/rdma/guests --build $(BUILD) --kernel build/rdma --tests 'net_stream comm_init' --script tests/rdma/bench
# The same as a part of make test: where its packages cannot be had it says so.
test-rdma-if:
	@if $(MAKE) --no-print-directory deps-rdma >build/rdma.log 2>&1; then $(MAKE) --no-print-directory check-rdma; \
	else echo "skipped: two guests with soft-RoCE: $$(tail -n 1 build/rdma.log)"; fi

# The Python package, in a virtual environment with PyTorch from PyPI. FCC_TEST_DEVICE=cuda: on GPUs; PYTEST_ARGS: for pytest.
test-python: all
	@BUILD=$(BUILD) tests/python $(PYTEST_ARGS)

# Have the plug-ins the matrix instructions that they should? (cuobjdump, from CUDA, for cuda.so)
check-gpu-code: plugins
	tests/gpu_code $(PLUGINS)

# ---- demo and bench ------------------------------------------------------------------------------------------------

DEMO := $(DEMO_COMMON) tests/demo/dlrm.c tests/demo/main.c tests/demo/mlp.c tests/demo/moe.c tests/demo/rank.c tests/demo/report.c \
	tests/demo/text.c
$(BUILD)/tests/demo: $(call objects,$(DEMO) $(FCCCTL_COMMON) $(KERNELS) $(PROTO)) $(BUILD)/lib/libfccclient.so | $(BUILD)/tests
	$(call say,LD)
	$(Q)$(LINK_TEST) $(LINK_CLIENT) $(shell pkg-config --libs json-c) -lm

TEXT ?=
demo: deps
	@$(MAKE) --no-print-directory demo-run
demo-run: all $(BUILD)/tests/demo
	$(BUILD)/tests/demo $(if $(TEXT),--text '$(TEXT)')

$(BUILD)/tests/mpi_sequence: tests/bench/mpi_sequence.c tests/bench/mpi_operators.c $(call objects,$(FCCCTL_COMMON) $(KERNELS) $(PROTO)) | $(BUILD)/tests
	$(call say,LD)
	$(Q)OMPI_CC=$(CC) mpicc $(CPPFLAGS) $(BLAS_CFLAGS) $(CFLAGS) $(LDFLAGS) $^ -o $@ $(shell pkg-config --libs json-c) -lm

# Linked with nothing of ours.
$(BUILD)/tests/pace: $(call objects,tests/bench/pace.c) | $(BUILD)/tests
	$(call say,LD)
	$(Q)$(LINK_TEST)

bench: deps deps-bench
	@$(MAKE) --no-print-directory bench-run
bench-run: all $(BUILD)/tests/mpi_sequence $(BUILD)/tests/pace
	tests/bench/compare --build $(BUILD) $(BENCH_ARGS)

# The kernels alone, without a daemon and without PyTorch: built with the tests where there is a plug-in.
GPU_KERNELS := tests/bench/gpu_kernels.c tests/bench/gpu_kernels_data.c tests/bench/gpu_kernels_prepare.c tests/bench/gpu_kernels_run.c
$(BUILD)/tests/gpu_kernels: $(call objects,$(GPU_KERNELS) $(KERNELS) $(PROTO) daemon/plugin.c) | $(BUILD)/tests
	$(call say,LD)
	$(Q)$(LINK_TEST) -lm

# Links between nodes over loopback, beside plain sockets.
$(BUILD)/tests/net_bench: $(call objects,tests/bench/net_bench.c $(NET) proto/error.c) | $(BUILD)/tests
	$(call say,LD)
	$(Q)$(LINK_TEST)

# Nodes in network namespaces, beside iperf3; as root.
$(BUILD)/tests/net_stream: $(call objects,tests/bench/net_stream.c $(NET) proto/error.c) | $(BUILD)/tests
	$(call say,LD)
	$(Q)$(LINK_TEST)
$(BUILD)/tests/comm_init: $(call objects,tests/bench/comm_init.c) $(BUILD)/lib/libfccclient.so | $(BUILD)/tests
	$(call say,LD)
	$(Q)$(LINK_TEST) $(LINK_CLIENT)
bench-nodes: deps deps-bench-nodes
	@$(MAKE) --no-print-directory bench-nodes-run
bench-nodes-run: all $(NODES_BENCH)
	tests/bench/nodes --build $(BUILD) $(BENCH_ARGS)

# On a machine with NVIDIA GPUs and PyTorch.
bench-gpu: all
	tests/bench/compare_gpu --build $(BUILD) $(BENCH_ARGS)

include tests/fuzz/files.mk

# ---- lint ----------------------------------------------------------------------------------------------------------

SOURCES := $(PROTO) $(KERNELS) $(DAEMON) $(if $(VERBS_LIBS),$(VERBS)) $(CLIENT) $(FCCCTL) $(DEMO) $(GPU_KERNELS) client/example_env.c client/example_gemv.c tests/bench/comm_init.c tests/bench/net_bench.c tests/bench/net_stream.c tests/bench/pace.c tests/fake_driver.c tests/fake_gpu.c tests/daemons.c tests/fake_gpu_kernel.c tests/fake_gpu_memory.c tests/fake_gpu_nodes.c tests/fake_gpu_prepared.c tests/fake_gpu_side.c tests/harness.c tests/program.c tests/raw.c tests/relay_broker.c tests/slurm.c tests/spaces.c $(if $(VERBS_LIBS),tests/verbs_faults.c) tests/wire.c \
	$(patsubst %,tests/test_%.c,$(filter-out reference,$(UNIT)) $(SYSTEM) $(GPU_SYSTEM)) tests/demo/test_reference.c $(FUZZ_SOURCES)
HEADERS = $(shell git ls-files '*.h')
LINT_FLAGS = $(filter-out -D_FORTIFY_SOURCE=2,$(CPPFLAGS)) -DFCC_BLAS_LIBRARY=__FILE__ -Idaemon/broker -Idaemon/worker -Itests -Itests/demo -Itests/fuzz $(BLAS_CFLAGS)

lint: deps deps-lint
	@$(MAKE) --no-print-directory lint-run
lint-run:
	@clang-format --dry-run -Werror $(SOURCES) $(HEADERS) $(GPU_SOURCES)
	@tests/lint $(LINT_FLAGS) -- $(SOURCES)
	cd client/python && mypy --cache-dir '$(CURDIR)/$(BUILD)/mypy'

# ---- install -------------------------------------------------------------------------------------------------------

# systemd/place has the list of what goes where.
PLACES = BUILD='$(BUILD)' DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' BINDIR='$(PREFIX)/bin' LIBDIR='$(PREFIX)/lib' MANDIR='$(PREFIX)/share/man' \
	SYSCONFDIR='$(SYSCONFDIR)' SYSTEMDDIR='$(SYSTEMDDIR)' VERSION='$(VERSION)' SOVERSION='$(SOVERSION)' PLUGINS='$(PLUGINS) $(VERBS_PLUGIN)'
install: all man
	$(Q)$(PLACES) systemd/place install
uninstall:
	$(Q)$(PLACES) systemd/place uninstall

# ---- what is missing -----------------------------------------------------------------------------------------------

deps:
	@tests/packages $(PACKAGES_BUILD) $(PACKAGES_TEST)
deps-lint:
	@tests/packages $(PACKAGES_LINT)
deps-rdma:
	@tests/packages $(PACKAGES_RDMA)
	@tests/rdma/fetch build/rdma
deps-bench:
	@tests/packages $(PACKAGES_BENCH)
deps-bench-nodes:
	@tests/packages $(PACKAGES_BENCH_NODES)
deps-launchers:
	@tests/packages $(PACKAGES_LAUNCHERS)
deps-gpu:
	@tests/packages $(PACKAGES_GPU)

help:
	@echo 'make           build fccd, fccctl and libfccclient into build/'
	@echo 'make demo      install what is missing, build, and show fused operators on the words of a text (TEXT=path)'
	@echo 'make test      install what is missing, build, and run all tests (SAN=address, undefined, both with a comma, or thread; TEST_JOBS=4 at a time)'
	@echo 'make bench     compare with Open MPI and the same BLAS, in one run'
	@echo 'make bench-nodes  nodes in network namespaces: overlap over a shaped link, and tcp beside iperf3 (as root)'
	@echo 'make bench-rdma links over verbs, in the two emulated machines of make test-rdma'
	@echo 'make bench-gpu compare with PyTorch, NCCL and symmetric memory, on a machine with NVIDIA GPUs'
	@echo 'make fuzz      install what is missing, build the fuzz targets, and run each for 20 s (SECONDS=3600; TARGET=name for one)'
	@echo 'make lint      clang-format, clang-tidy, cppcheck, and mypy for the Python package'
	@echo 'make install   install to DESTDIR and PREFIX (/usr/local; PREFIX=$$HOME/.local for yourself); make uninstall removes that again'
	@echo 'make man       the man pages'
	@echo 'make deps      install what is missing to build and test (deps-gpu for the hip plug-in, deps-lint, deps-bench, deps-bench-nodes, deps-rdma;'
	@echo '               deps-launchers for the tests under mpirun, mpiexec, srun and torchrun)'
	@echo 'make test-rdma data between nodes over RDMA: two emulated machines with soft-RoCE (a part of make test)'
	@echo 'make test-python  the Python package fcc, with PyTorch from PyPI (a part of make test; PYTEST_ARGS goes to pytest)'
	@echo 'make clean     remove build/'
	@echo 'V=1 shows the commands; BENCH_ARGS goes to tests/bench/compare'

clean:
	rm -rf build

-include $(shell find build -path build/rdma -prune -o -name '*.d' -type f -print 2>/dev/null)
