# Tests, the demo, lint, and what they need of Debian. tests/bench/files.mk and tests/fuzz/files.mk have benchmarks and fuzz targets.

PACKAGES_BUILD := gcc libc6-dev make pkg-config libevent-dev libjson-c-dev libsystemd-dev libopenblas-pthread-dev libssl-dev scdoc \
	libibverbs-dev librdmacm-dev libhwloc-dev libseccomp-dev
PACKAGES_TEST := libcmocka-dev python3 python3-dev python3-venv g++ iproute2 zsh
PACKAGES_LINT := clang-format clang-tidy cppcheck mypy
PACKAGES_GPU := hipcc llvm-15 clang-tools-15 python3-venv
# For make deb, and for tests/deb, which brings a Debian of its own.
PACKAGES_DEB := debhelper dh-apparmor apparmor dpkg-dev fakeroot dh-python chrpath python3 lintian debootstrap
PACKAGES_LAUNCHERS := openmpi-bin openssh-client mpich slurmctld slurmd slurm-client munge python3-torch
# iproute2 has rdma(8); Debian's kernel for the guests and a busybox are fetched, not installed.
PACKAGES_RDMA := qemu-system-x86 iproute2 ibverbs-providers kmod cpio python3

.PHONY: deps deps-gpu deps-lint deps-deb deps-rdma deps-launchers deps-all
deps:
	@tests/packages $(PACKAGES_BUILD) $(PACKAGES_TEST)
deps-lint:
	@tests/packages $(PACKAGES_LINT)
deps-deb:
	@tests/packages $(PACKAGES_DEB)
deps-rdma:
	@tests/packages $(PACKAGES_RDMA)
	@tests/rdma/fetch build/rdma
deps-launchers:
	@tests/packages $(PACKAGES_LAUNCHERS)
deps-gpu:
	@tests/packages $(PACKAGES_GPU)
# Everything that .ci/run needs, by one run of apt.
deps-all:
	@tests/packages $(sort $(PACKAGES_BUILD) $(PACKAGES_TEST) $(PACKAGES_LINT) $(PACKAGES_DEB) $(PACKAGES_GPU) $(PACKAGES_LAUNCHERS) $(PACKAGES_RDMA) $(PACKAGES_FUZZ) $(PACKAGES_BENCH))

# ---- which there are -------------------------------------------------------------------------------------------------

# The names of the tests in these folders of tests/. Names are unique: the programs lie side by side.
tests_in = $(patsubst test_%,%,$(basename $(notdir $(sort $(wildcard $(patsubst %,tests/%/test_*.c,$(1)))))))
# Those that need a GPU.
GPU_SYSTEM := $(call tests_in,gpu)
# Those that take longest come first, so that none is alone at the end.
SLOW := generate gpu_worker_pieces gpu_worker_pieces_ends gpu_worker_programs gpu_worker_steps programs launchers regroup leaks adopt_changes gather_plan plan_ranks \
	kernels operators early kills visitors descriptors limits gpu_worker gpu_worker_sums gpu_worker_sums_ends gpu_worker_nodes gpu_worker_nodes_ends fccctl fccctl_trace gpu_worker_words \
	gpu_worker_errors gpu_worker_prepared_ends gpu_worker_puts gpu_worker_products gpu_worker_repeated collectives netns net peers peers_many node_faults nodes node_rails early_nodes handover forming
# The sanitizers leave out what others start, which are programs that other tests have, and a model, which has none of the daemon's code; thread
# sanitizer those of one thread, in which there is nothing that it looks for.
LAUNCHED := launchers root_names
MODELS := bound_model
ONE_THREAD := kernels landing tiles plan plan_ranks prepared_plan scatter_plan vector_plan gather_plan specs arguments epilogue_arguments cost \
	program transform schedules generate sim sim_links lanes tune core hostlist

TESTS := $(SLOW) $(filter-out $(SLOW) $(GPU_SYSTEM) $(if $(VERBS_LIBS),,$(call tests_in,verbs)),$(call tests_in,*))
test_binaries = $(addprefix $(BUILD)/tests/test_,$(1))
TEST_BINARIES := $(call test_binaries,$(filter-out $(if $(SAN),$(LAUNCHED) $(MODELS)) $(if $(filter thread,$(SAN)),$(ONE_THREAD)),$(TESTS)))
GPU_BINARIES := $(call test_binaries,$(GPU_SYSTEM))
# The same assertions again on GPUs, for every plug-in that was built; without a GPU they say so.
GPU_TESTS := $(if $(SAN),,$(foreach kind,$(patsubst $(BUILD)/lib/fccd/%.so,%,$(PLUGINS)),$(addprefix $(kind):,$(call test_binaries,kernels operators routes $(if $(filter cuda,$(kind)),$(GPU_SYSTEM))))))
# They mostly wait.
TEST_JOBS ?= 6

# ---- what they are made of: a test takes from these archives what it uses -------------------------------------------------

BED := $(call in,tests/bed) tests/demo/number.c tests/demo/reference.c
$(BUILD)/tests/bed.a: $(call objects,$(BED))
$(BUILD)/tests/daemon.a: $(call objects,$(filter-out daemon/main.c,$(DAEMON)) $(KERNELS) $(SIMULATION) $(PROTO) $(if $(VERBS_LIBS),$(VERBS)))
$(BUILD)/tests/client.a: $(call objects,$(CLIENT) $(PROTO))
$(BUILD)/tests/%.a:
	@mkdir -p $(@D)
	$(call say,AR)
	$(Q)rm -f $@ && ar qcsT $@ $^

# Those in tests/client/ have the library's objects, whose names it does not export; all others load the library and have the daemon's objects.
$(foreach source,$(wildcard tests/*/test_*.c),$(eval $(BUILD)/tests/$(basename $(notdir $(source))): $(call objects,$(source))))
ALL_TESTS := $(call test_binaries,$(call tests_in,*))
LIBRARY_TESTS := $(call test_binaries,$(call tests_in,client))
$(LIBRARY_TESTS): $(BUILD)/tests/bed.a $(BUILD)/tests/client.a
$(filter-out $(LIBRARY_TESTS),$(ALL_TESTS)): $(BUILD)/tests/bed.a $(BUILD)/tests/daemon.a $(BUILD)/lib/libfccclient.so
$(filter-out $(LIBRARY_TESTS),$(ALL_TESTS)): TEST_LINK = $(LINK_CLIENT) $(VERBS_LIBS)
$(ALL_TESTS):
	$(call say,LD)
	$(LINK) -Wl,--as-needed $(TEST_LINK) -lcmocka -lm $(DAEMON_LIBS)
$(BUILD)/tests/test_client_waits: TEST_LINK := -Wl,--wrap=patience_ms
$(BUILD)/tests/test_program_products: $(BUILD)/tests/daemon.a # its plans
$(BUILD)/tests/test_program_tune: TEST_LINK := -Wl,--wrap=program_step_run
$(BUILD)/tests/test_core: TEST_LINK := -Wl,--wrap=sched_setaffinity -Wl,--wrap=sched_getcpu -Wl,--wrap=sched_yield
$(BUILD)/tests/test_env: $(call objects,daemon/worker/session/meeting.c)

# ---- what they start or load -----------------------------------------------------------------------------------------

SHARED = $(LINK) -shared
# The GPUs' driver libraries, and a GPU plug-in, without a GPU: for the library's and the worker's side of them under the sanitizers.
FAKE_DRIVERS := $(addprefix $(BUILD)/tests/fake_driver/,libcuda.so.1 libamdhip64.so.5)
$(FAKE_DRIVERS): $(call objects,tests/fake_gpu/fake_driver.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(SHARED) -Wl,-soname,$(@F) # who has loaded it by its path has it by its name, too
FAKE_GPU := $(sort $(wildcard tests/fake_gpu/fake_gpu*.c))
FAKE_PLUGIN := $(BUILD)/tests/fake_plugin/cuda.so
$(FAKE_PLUGIN): $(call objects,$(FAKE_GPU) kernels/cpu/combine.c kernels/cpu/step.c $(PLANS) proto/base/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(SHARED) -lm
# The verbs plug-in with a way to break queue pairs; and in its place an adapter that is none, which writes into fake GPUs' memory.
FAULTY_VERBS := $(if $(VERBS_LIBS),$(BUILD)/tests/faulty_plugin/verbs.so)
$(BUILD)/tests/faulty_plugin/verbs.so: $(call objects,tests/verbs/verbs_faults.c $(VERBS) $(NET) proto/base/network.c proto/base/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(VERBS_LINK) $(VERBS_LIBS)
DIRECT_VERBS := $(BUILD)/tests/direct_plugin/verbs.so
$(DIRECT_VERBS): $(call objects,tests/fake_gpu/direct_verbs.c $(NET) proto/base/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(VERBS_LINK) -Wl,--wrap=net_regions_hold
# The broker with a relay for workers, and a name service that is slow.
RELAY_BROKER := $(BUILD)/tests/relay_broker
$(RELAY_BROKER): $(call objects,tests/nodes/relay_broker.c $(filter-out daemon/main.c daemon/net/% daemon/worker/%,$(DAEMON)) $(PROTO))
	$(call say,LD)
	$(LINK) $(DAEMON_LIBS)
# fccd as it will be when nodes have a new version of what they say to each other.
OTHER_VERSION := $(BUILD)/tests/fccd_other_version
$(BUILD)/obj/tests/other_version.o: daemon/common/auth.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) -DAUTH_VERSION=10001u $(CFLAGS) -MMD -MP -c $< -o $@
$(OTHER_VERSION): $(BUILD)/obj/tests/other_version.o $(call objects,$(filter-out daemon/common/auth.c,$(DAEMON)) $(KERNELS) $(PROTO))
	$(call say,LD)
	$(LINK) $(DAEMON_LIBS) -lm
# fccd whose broker does not speak the language of this version's workers.
OTHER_CONTROL := $(BUILD)/tests/fccd_other_control
CONTROL_SOURCES := daemon/broker/adopt.c daemon/broker/channel.c daemon/broker/job.c daemon/broker/store.c daemon/worker/engine/adopt.c
$(BUILD)/obj/tests/other_control/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) -DCONTROL_VERSION=2u -DCONTROL_OLDEST=2u $(CFLAGS) -MMD -MP -c $< -o $@
$(OTHER_CONTROL): $(CONTROL_SOURCES:%.c=$(BUILD)/obj/tests/other_control/%.o) $(call objects,$(filter-out $(CONTROL_SOURCES),$(DAEMON)) $(KERNELS) $(PROTO))
	$(call say,LD)
	$(LINK) $(DAEMON_LIBS) -lm
# fccd, and the library, as they speak the oldest version of the protocol that is still spoken.
OLDEST := $(addprefix $(BUILD)/tests/oldest/,bin/fccd lib/libfccclient.so.$(SOVERSION))
oldest_objects = $(patsubst %.c,$(BUILD)/obj/tests/oldest/%.o,$(filter $(OLDEST_SOURCES),$(1))) $(call objects,$(filter-out $(OLDEST_SOURCES),$(1)))
OLDEST_SOURCES := daemon/common/auth.c daemon/broker/hello.c daemon/broker/job.c daemon/worker/comm/join.c proto/version.c client/connect.c client/comm_join.c
$(BUILD)/obj/tests/oldest/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) -DFCC_PROTO_VERSION=FCC_PROTO_OLDEST $(CFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/tests/oldest/bin/fccd: $(call oldest_objects,$(DAEMON) $(KERNELS) $(PROTO))
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) $(DAEMON_LIBS) -lm
$(BUILD)/tests/oldest/lib/libfccclient.so.$(SOVERSION): $(call oldest_objects,$(CLIENT) $(PROTO)) client/libfccclient.map
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) -shared -Wl,-soname,libfccclient.so.$(SOVERSION) -Wl,--version-script=client/libfccclient.map -lm
SLOW_NAMES := $(BUILD)/tests/slow_names.so
$(SLOW_NAMES): $(call objects,tests/broker/slow_names.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(SHARED)

$(LIBRARY_TESTS): | $(FAKE_DRIVERS)
$(call test_binaries,$(call tests_in,worker)): | $(FAKE_PLUGIN) $(FAKE_DRIVERS)
$(call test_binaries,gpu_worker_nodes): | $(DIRECT_VERBS)
$(call test_binaries,node_faults): | $(FAULTY_VERBS)
$(call test_binaries,node_rails): | $(call test_binaries,operators)
$(call test_binaries,peers peers_many retire): | $(RELAY_BROKER)
$(call test_binaries,names): | $(SLOW_NAMES)
$(call test_binaries,versions): | $(OLDEST) $(BUILD)/bin/example_gemv
$(call test_binaries,denials): | $(OTHER_VERSION)
$(call test_binaries,adopt_ends): | $(OTHER_CONTROL) $(OLDEST)

# ---- run them --------------------------------------------------------------------------------------------------------

.PHONY: test check check-build test-rdma check-rdma test-rdma-if test-python check-gpu-code check-gpu-code-of demo demo-run lint lint-run
# What else has to hold of what was built: scripts, which run among the programs.
SCRIPTS := tests/words tests/layers tests/abi/check "tests/sim/figures --small --out $(BUILD)/tests" $(addprefix tests/bench/test_compare_,gpu decode t3 coconet)
# Installs what is missing, builds, and runs every test. SAN=address, undefined, address,undefined or thread: the same under these sanitizers.
# Emulated machines have all cores for themselves: beside as many tests, links between them did not come about in time.
test: deps
	@$(MAKE) --no-print-directory check $(if $(SAN),,LONGEST='"make -s test-python"')
	$(if $(SAN),,@$(MAKE) --no-print-directory test-rdma-if)
# LONGEST: what takes longest, and so comes first.
check: check-build
	@BUILD=$(BUILD) JOBS=$(TEST_JOBS) tests/run $(LONGEST) $(if $(SAN),,$(SCRIPTS)) $(TEST_BINARIES) $(GPU_TESTS)

# The tests on GPUs are not made for the sanitizers, under which nothing of theirs runs.
check-build: all $(if $(SAN),,$(BUILD)/tests/program_fcc) $(TEST_BINARIES) $(if $(SAN),,$(GPU_BINARIES)) $(if $(PLUGINS),$(BUILD)/tests/gpu_kernels)

# Two kernels in QEMU (emulated, so anywhere), joined by soft-RoCE: data between nodes over real verbs.
RDMA_TESTS := test_operators test_node_faults test_net_verbs test_net_verbs_ends test_gpu_worker_nodes_ends test_gpu_worker_machines
test-rdma: deps deps-rdma
	@$(MAKE) --no-print-directory check-rdma
check-rdma: all $(addprefix $(BUILD)/tests/,$(RDMA_TESTS))
	tests/rdma/guests --build $(BUILD) --kernel build/rdma --tests '$(RDMA_TESTS)'
# The same as a part of make test: where its packages cannot be had it says so.
test-rdma-if:
	@if $(MAKE) --no-print-directory deps-rdma >build/rdma.log 2>&1; then $(MAKE) --no-print-directory check-rdma; \
	else echo "skipped: two guests with soft-RoCE: $$(tail -n 1 build/rdma.log)"; fi

# The Python package, in a virtual environment with PyTorch from PyPI. FCC_TEST_DEVICE=cuda: on GPUs; PYTEST_ARGS: for pytest.
test-python: all $(FAKE_PLUGIN) $(FAKE_DRIVERS)
	@BUILD=$(BUILD) tests/python $(PYTEST_ARGS)

# Have the plug-ins the matrix instructions that they should? (cuobjdump, from CUDA, for cuda.so)
check-gpu-code: plugins
	@$(MAKE) --no-print-directory check-gpu-code-of GPU_CODE='$(PLUGINS) $(HIP_CHECKED)'
check-gpu-code-of: $(GPU_CODE) $(DEVICE_TEXT) $(BUILD)/bin/fccctl
	tests/gpu_code $(GPU_CODE)
	tests/generated_code $(BUILD)/bin/fccctl $(DEVICE_TEXT)

# ---- the demo ----------------------------------------------------------------------------------------------------------

DEMO := $(filter-out tests/demo/test_%,$(call in,tests/demo))
$(BUILD)/tests/demo: $(call objects,$(DEMO) $(FCCCTL_COMMON) $(KERNELS) $(PROTO)) $(BUILD)/lib/libfccclient.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) $(LINK_CLIENT) $(JSON_LIBS) -lm

TEXT ?=
demo: deps
	@$(MAKE) --no-print-directory demo-run
demo-run: all $(BUILD)/tests/demo
	$(BUILD)/tests/demo $(if $(TEXT),--text '$(TEXT)')

# ---- lint --------------------------------------------------------------------------------------------------------------

# All sources but those that need a header that is not there: MPI's, RDMA's.
SOURCES := $(filter-out tests/bench/mpi_% $(if $(VERBS_LIBS),,daemon/net/verbs/% tests/verbs/%),$(shell git ls-files '*.c' 2>/dev/null))
LINT_FLAGS = $(filter-out -D_FORTIFY_SOURCE=2,$(CPPFLAGS)) -DFCC_BLAS_LIBRARY=__FILE__ -Iproto $(BLAS_CFLAGS)

lint: deps deps-lint
	@$(MAKE) --no-print-directory lint-run
lint-run:
	$(if $(SOURCES),,@echo 'make lint: allowed is a checkout by git, which says what the sources are' >&2; exit 1)
	@BUILD=$(BUILD) tests/layers
	@clang-format --dry-run -Werror $(SOURCES) $(shell git ls-files '*.h' '*.hip')
	@tests/lint $(LINT_FLAGS) -- $(SOURCES)
	cd client/python && mypy --cache-dir '$(CURDIR)/$(BUILD)/mypy'

# How far the simulation is from what was measured.
.PHONY: check-simulation simulation-figures
check-simulation: $(BUILD)/bin/fccctl
	@BUILD='$(BUILD)' tests/sim/check_simulation
# The tables of kernels/sim/README.md, and its pictures, which are written there. `make check` does the same in small.
simulation-figures: $(BUILD)/bin/fccctl
	@BUILD='$(BUILD)' tests/sim/figures
