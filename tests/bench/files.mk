# Benchmarks.
PACKAGES_BENCH := openmpi-bin libopenmpi-dev python3
PACKAGES_BENCH_NODES := iperf3 iproute2 python3

.PHONY: bench bench-run bench-neighbour bench-neighbour-gpu bench-share-gpu bench-metrics bench-nodes bench-nodes-run bench-rdma bench-rdma-run bench-gpu deps-bench deps-bench-nodes
deps-bench:
	@tests/packages $(PACKAGES_BENCH)
deps-bench-nodes:
	@tests/packages $(PACKAGES_BENCH_NODES)

$(BUILD)/tests/mpi_sequence: tests/bench/mpi_sequence.c tests/bench/mpi_operators.c $(call objects,$(FCCCTL_COMMON) $(KERNELS) $(PROTO))
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)OMPI_CC="$(CC)" mpicc $(CPPFLAGS) $(BLAS_CFLAGS) $(CFLAGS) $(LDFLAGS) $^ -o $@ $(JSON_LIBS) -lm

$(BUILD)/tests/mpi_collectives: tests/bench/mpi_collectives.c tests/bench/collectives.h
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)OMPI_CC="$(CC)" mpicc $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $< -o $@

bench: deps deps-bench
	@$(MAKE) --no-print-directory bench-run
bench-run: all $(addprefix $(BUILD)/tests/,mpi_sequence pace)
	tests/bench/compare --build $(BUILD) $(BENCH_ARGS)

# pace and latency are linked with nothing of ours. gpu_kernels: the kernels alone, without a daemon and without PyTorch. net_bench: links between
# nodes over loopback, beside plain sockets. net_stream: nodes in network namespaces, beside iperf3; as root.
$(BUILD)/tests/pace: $(call objects,tests/bench/pace.c)
$(BUILD)/tests/latency: $(call objects,tests/sim/latency.c)
$(BUILD)/tests/gpu_kernels: $(call objects,$(sort $(wildcard tests/bench/gpu_kernels*.c)) $(KERNELS) $(PROTO) daemon/common/plugin.c)
$(BUILD)/tests/net_bench: $(call objects,tests/bench/net_bench.c $(NET) proto/base/error.c)
$(BUILD)/tests/net_stream: $(call objects,tests/bench/net_stream.c $(NET) proto/base/error.c)
$(addprefix $(BUILD)/tests/,pace latency gpu_kernels net_bench net_stream):
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) -lm
$(addprefix $(BUILD)/tests/,comm_init collectives_fcc adam_fcc): $(BUILD)/tests/%: $(BUILD)/obj/tests/bench/%.o $(BUILD)/lib/libfccclient.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) $(LINK_CLIENT)

# Its programs are computed in double precision, too, by the tests' reference.
$(BUILD)/tests/program_fcc: $(call objects,tests/bench/program_fcc.c) $(BUILD)/tests/daemon.a $(BUILD)/lib/libfccclient.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) $(LINK_CLIENT) -lm

# A job beside a hostile one of another user; as root.
$(BUILD)/tests/neighbour: $(call objects,$(wildcard tests/bench/neighbour/*.c)) $(BUILD)/lib/libfccclient.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) $(LINK_CLIENT) -lm
bench-neighbour: $(BUILD)/bin/fccd $(BUILD)/tests/neighbour
	$(BUILD)/tests/neighbour $(BUILD)/bin/fccd $(BENCH_ARGS)

# ... and beside one on the same GPU, of which a process dies.
$(BUILD)/tests/neighbour_gpu $(BUILD)/tests/share_gpu: $(BUILD)/tests/%_gpu: $(BUILD)/obj/tests/bench/%_gpu.o $(BUILD)/tests/bed.a $(BUILD)/tests/daemon.a $(BUILD)/lib/libfccclient.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) -Wl,--as-needed $(LINK_CLIENT) -lcmocka -lm $(DAEMON_LIBS)
bench-neighbour-gpu: $(BUILD)/bin/fccd $(BUILD)/bin/fccctl $(BUILD)/tests/neighbour_gpu
	FCC_TEST_DEVICE=cuda FCC_TEST_VERBOSE=1 $(BUILD)/tests/neighbour_gpu

# Two users' jobs that share a GPU by weight; as root.
bench-share-gpu: $(BUILD)/bin/fccd $(BUILD)/bin/fccctl $(BUILD)/tests/share_gpu
	FCC_TEST_DEVICE=cuda FCC_TEST_VERBOSE=1 $(BUILD)/tests/share_gpu

# What counting costs an operator.
$(BUILD)/tests/no_ledger.so: $(call objects,tests/bench/no_ledger.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(SHARED)
$(BUILD)/tests/metrics_cost: $(BUILD)/obj/tests/bench/metrics_cost.o $(BUILD)/tests/daemon.a
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK)
bench-metrics: $(BUILD)/bin/fccd $(BUILD)/bin/fccctl $(BUILD)/tests/no_ledger.so $(BUILD)/tests/metrics_cost
	tests/bench/metrics --build $(BUILD) $(BENCH_ARGS)

NODES_BENCH := $(addprefix $(BUILD)/tests/,net_stream comm_init)
bench-nodes: deps deps-bench-nodes
	@$(MAKE) --no-print-directory bench-nodes-run
bench-nodes-run: all $(NODES_BENCH)
	tests/bench/nodes --build $(BUILD) $(BENCH_ARGS)
# Figures of the two emulated machines of make test-rdma.
bench-rdma: deps deps-rdma
	@$(MAKE) --no-print-directory bench-rdma-run
bench-rdma-run: all $(NODES_BENCH)
	tests/rdma/guests --build $(BUILD) --kernel build/rdma --tests 'net_stream comm_init' --script tests/rdma/bench

# On a machine with NVIDIA GPUs and PyTorch.
bench-gpu: all
	tests/bench/compare_gpu --build $(BUILD) $(BENCH_ARGS)
