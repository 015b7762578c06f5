# make fuzz: programs that look for inputs that crash fccd, hang it, or break what it promises (tests/fuzz/fuzz.h). With clang each is built
# with libFuzzer, without it with gcc and tests/fuzz/driver.c; in both cases with the address and undefined sanitizers, below build/fuzz.
#
#   SECONDS=20        how long each runs
#   TARGET=NAME       only this one
#   FUZZ_ENGINE=driver  as without clang
#
# What a program has reached is kept in build/fuzz/corpus/NAME and taken up by the next run. It starts from tests/fuzz/corpus/NAME.

SECONDS ?= 20
TARGET ?=
FUZZ_ENGINE ?= libfuzzer
PACKAGES_FUZZ := clang libclang-rt-dev libcmocka-dev python3
FUZZ_TARGETS := arguments program plan config describe auth fds prepared client broker worker nodes peers gpus
FUZZ_SOURCES := $(addprefix tests/fuzz/,bed.c client.c driver.c ledgers.c misbehave.c other_node.c outside.c outside_wire.c program.c scarce.c submit.c) $(patsubst %,tests/fuzz/fuzz_%.c,$(FUZZ_TARGETS))

.PHONY: fuzz fuzz-build fuzz-run deps-fuzz
fuzz: deps deps-fuzz
	@$(MAKE) --no-print-directory fuzz-run
# Without clang it runs with the driver.
deps-fuzz:
	@tests/packages $(PACKAGES_FUZZ) || echo 'without clang: the fuzz targets are run by tests/fuzz/driver.c'

ifneq ($(findstring fuzz,$(MAKECMDGOALS)),)
FUZZ_CLANG := $(firstword $(foreach name,clang clang-16 clang-15 clang-14,$(shell command -v $(name) 2>/dev/null)))
FUZZ_CLANG := $(if $(FUZZ_CLANG),$(shell echo 'int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void) { return 0; }' \
	| $(FUZZ_CLANG) -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null && echo $(FUZZ_CLANG)))
FUZZ_ENGINE_USED := $(if $(FUZZ_CLANG),$(FUZZ_ENGINE),driver)
FUZZ := build/fuzz
FUZZ_BUILD := $(FUZZ)/$(FUZZ_ENGINE_USED)
FUZZ_CC := $(if $(filter libfuzzer,$(FUZZ_ENGINE_USED)),$(FUZZ_CLANG),$(CC))
FUZZ_SAN := address,undefined
FUZZ_CPPFLAGS := -D_GNU_SOURCE -I. \
	$(BLAS_CFLAGS) -DFCC_BLAS_LIBRARY='"$(BLAS_LIBRARY)"'
FUZZ_CFLAGS := -std=gnu11 -g -O1 -fPIC -fno-math-errno -pthread -fno-omit-frame-pointer -fno-sanitize-recover=all \
	-fsanitize=$(FUZZ_SAN)$(if $(filter libfuzzer,$(FUZZ_ENGINE_USED)),$(comma)fuzzer-no-link) -Wall -Wextra -Wmissing-prototypes $(if $(WERROR),-Werror)
FUZZ_LINK = $(FUZZ_CC) -pthread -fsanitize=$(FUZZ_SAN)$(if $(filter libfuzzer,$(FUZZ_ENGINE_USED)),$(comma)fuzzer) $(filter %.o,$^) -o $@
fuzz_objects = $(patsubst %.c,$(FUZZ_BUILD)/obj/%.o,$(1) $(if $(filter driver,$(FUZZ_ENGINE_USED)),tests/fuzz/driver.c))

$(foreach name,$(filter-out $(FUZZ_TARGETS),$(TARGET)),$(error TARGET=$(name): there are $(FUZZ_TARGETS)))
$(if $(filter 0,$(shell expr '$(SECONDS)' : '[1-9][0-9]*$$')),$(error SECONDS=$(SECONDS): allowed is a number from 1 on))
FUZZ_CHOSEN := $(if $(TARGET),$(TARGET),$(FUZZ_TARGETS))
fuzz-build: $(addprefix $(FUZZ_BUILD)/,$(FUZZ_CHOSEN))
fuzz-run: fuzz-build
	@tests/fuzz/run $(FUZZ_BUILD) $(FUZZ) $(SECONDS) $(FUZZ_CHOSEN)

$(FUZZ_BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(FUZZ_CC) $(FUZZ_CPPFLAGS) $(FUZZ_CFLAGS) -MMD -MP -c $< -o $@

$(FUZZ_BUILD)/arguments: $(call fuzz_objects,$(KERNELS) $(PROTO) tests/fuzz/fuzz_arguments.c)
	$(call say,LD)
	$(Q)$(FUZZ_LINK) -lm
$(FUZZ_BUILD)/program: $(call fuzz_objects,$(KERNELS) $(PROTO) tests/fuzz/fuzz_program.c)
	$(call say,LD)
	$(Q)$(FUZZ_LINK) -lm
$(FUZZ_BUILD)/plan: $(call fuzz_objects,$(KERNELS) $(PROTO) tests/fuzz/fuzz_plan.c)
	$(call say,LD)
	$(Q)$(FUZZ_LINK) -lm
$(FUZZ_BUILD)/config: $(call fuzz_objects,proto/base/cgroup.c daemon/common/cluster.c daemon/common/text_file.c daemon/common/config.c daemon/common/loopback.c proto/base/address.c proto/base/log.c proto/base/log_limit.c proto/base/network.c client/launchers/hostlist.c proto/base/error.c proto/variables.c tests/fuzz/fuzz_config.c)
	$(call say,LD)
	$(Q)$(FUZZ_LINK) $(shell pkg-config --libs json-c)
$(FUZZ_BUILD)/describe: $(call fuzz_objects,$(KERNELS) $(SIMULATION) $(PROTO) $(filter-out client/fccctl/bench/local.c,$(FCCCTL_COMMON)) \
		$(addprefix client/fccctl/simulate/,describe.c machines.c measured.c places.c reading.c units.c variant.c workloads.c) tests/fuzz/fuzz_describe.c)
	$(call say,LD)
	$(Q)$(FUZZ_LINK) $(shell pkg-config --libs json-c) -ldl -lm
$(FUZZ_BUILD)/auth: $(call fuzz_objects,daemon/common/auth.c daemon/common/cluster.c daemon/common/text_file.c proto/base/error.c tests/fuzz/fuzz_auth.c)
	$(call say,LD)
	$(Q)$(FUZZ_LINK) $(shell pkg-config --libs libcrypto)
$(FUZZ_BUILD)/fds: $(call fuzz_objects,proto/msg.c proto/base/error.c tests/fuzz/fuzz_fds.c)
	$(call say,LD)
	$(Q)$(FUZZ_LINK)
$(FUZZ_BUILD)/prepared: $(call fuzz_objects,$(KERNELS) $(PROTO) tests/fuzz/fuzz_prepared.c)
	$(call say,LD)
	$(Q)$(FUZZ_LINK) -lm
$(FUZZ_BUILD)/client: $(call fuzz_objects,$(CLIENT) $(PROTO) tests/fuzz/fuzz_client.c)
	$(call say,LD)
	$(Q)$(FUZZ_LINK) -Wl,--wrap=connect -Wl,--wrap=patience_ms -Wl,--wrap=dlopen -ldl
$(FUZZ_BUILD)/broker: $(call fuzz_objects,$(filter-out daemon/main.c daemon/broker/spawn.c,$(DAEMON)) $(KERNELS) $(PROTO) tests/fuzz/fuzz_broker.c tests/fuzz/ledgers.c tests/fuzz/other_node.c)
	$(call say,LD)
	$(Q)$(FUZZ_LINK) $(DAEMON_LIBS) -ldl -lm
# Workers in the target's process.
FUZZ_BED := $(addprefix tests/fuzz/,bed.c client.c misbehave.c outside.c outside_wire.c program.c scarce.c submit.c)
$(addprefix $(FUZZ_BUILD)/,worker nodes peers gpus): $(FUZZ_BUILD)/%: $(call fuzz_objects,$(filter-out daemon/main.c,$(DAEMON)) $(KERNELS) $(PROTO) $(FUZZ_BED)) \
		$(FUZZ_BUILD)/obj/tests/fuzz/fuzz_%.o
	$(call say,LD)
	$(Q)$(FUZZ_LINK) -Wl,--wrap=sendmsg $(DAEMON_LIBS) -ldl -lm
$(FUZZ_BUILD)/gpus: | $(FUZZ_BUILD)/fake_plugin/cuda.so
$(FUZZ_BUILD)/fake_plugin/cuda.so: $(patsubst %.c,$(FUZZ_BUILD)/obj/%.o,$(FAKE_GPU) proto/base/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(FUZZ_CC) -pthread -fsanitize=$(FUZZ_SAN) -shared $^ -o $@
endif
