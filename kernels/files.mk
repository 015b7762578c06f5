# Programs, plans, what runs on cores, and the GPU plug-ins, each where its compiler is found.
PROGRAMS := $(call in,kernels/program kernels/program/steps kernels/generate)
TUNE := $(call in,kernels/tune)
SIMULATION := $(call in,kernels/sim)
PLANS := $(PROGRAMS) $(TUNE) $(call in,kernels/plan kernels/plan/compute kernels/plan/exchange)
KERNELS := $(PLANS) $(call in,kernels/cpu kernels/cpu/lanes) daemon/worker/device/gpu/call.c

$(BUILD)/obj/kernels/%.o: OPTIMIZE := $(if $(findstring undefined,$(SAN)),-O1,-O3)
# The same bits on any machine: no product and sum become one operation with one rounding.
$(BUILD)/obj/kernels/sim/%.o $(BUILD)/obj/kernels/plan/cost%.o: CFLAGS += -ffp-contract=off
$(BUILD)/obj/kernels/%.o: CPPFLAGS += $(BLAS_CFLAGS) -DFCC_BLAS_LIBRARY='"$(BLAS_LIBRARY)"'

NVCC ?= $(firstword $(shell command -v nvcc /usr/local/cuda/bin/nvcc 2>/dev/null))
HIPCC ?= $(shell command -v hipcc 2>/dev/null)
CUDA_TARGETS := -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=[sm_80,compute_80]
# gfx942, where the compiler knows it (LLVM 17 does, Debian 12's 15 does not). Where it does not, HIP_CHECKED is what check-gpu-code
# compiles for gfx940, gfx942's prototype, which no product has: the one source that has code for them alone.
HIP_KNOWS_942 = $(shell $(HIPCC) --offload-arch=gfx942 -E -x hip /dev/null -o /dev/null 2>/dev/null && echo yes)
HIP_TARGETS = --offload-arch=gfx90a,gfx1030$(if $(HIP_KNOWS_942),$(comma)gfx942)
HIP_CHECKED = $(if $(filter %/hip.so,$(PLUGINS)),$(if $(HIP_KNOWS_942),,$(BUILD)/obj/hip/gemm_gfx940.s))
HIP_FLAGS = -std=c++17 -O3 $(GPU_CPPFLAGS) -fPIC -fvisibility=hidden -Wall -Wextra $(if $(WERROR),-Werror) -MMD -MP
GPU_SOURCES := $(sort $(wildcard kernels/gpu/device/compute/*.hip kernels/gpu/device/tiles/*.hip kernels/gpu/plugin/*.hip))
GPU_CPPFLAGS := -D_GNU_SOURCE -I. -I$(BUILD)/gen
# The headers that generated code is compiled with are part of the plug-ins, as a text.
DEVICE_TEXT := $(BUILD)/gen/kernels/gpu/plugin/device_text.h
$(DEVICE_TEXT): kernels/gpu/plugin/device_text $(wildcard kernels/gpu/*.h kernels/gpu/device/*.h kernels/gpu/device/exchange/*.h kernels/plan/*.h \
		kernels/plan/exchange/*.h kernels/program/*.h kernels/program/*.def proto/*.h proto/base/*.h)
	@mkdir -p $(@D)
	$(Q)kernels/gpu/plugin/device_text kernels/gpu/device/generated_prelude.h kernels/gpu/device/generated.h >$@.part && mv $@.part $@
$(BUILD)/obj/cuda/kernels/gpu/plugin/compile.o $(BUILD)/obj/hip/kernels/gpu/plugin/compile.o: $(DEVICE_TEXT)
PLUGINS := $(if $(SAN),,$(if $(NVCC),$(BUILD)/lib/fccd/cuda.so) $(if $(HIPCC),$(BUILD)/lib/fccd/hip.so))

# Where nvcc or hipcc is ccache's, an object counts as made if the text for the first target is the same, whatever has changed for the others: so all that may be in it
# counts, too.
GPU_INPUTS = $(shell find kernels/gpu kernels/plan kernels/program proto -name '*.h' -o -name '*.def' -o -name '*.hip' | LC_ALL=C sort | tr '\n' ':')
$(BUILD)/obj/cuda/%.o: %.hip Makefile
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)CCACHE_EXTRAFILES='$(GPU_INPUTS)' $(NVCC) -std=c++17 -O3 -g -x cu $(CUDA_TARGETS) $(GPU_CPPFLAGS) \
		-Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra$(if $(WERROR),$(comma)-Werror) $(if $(WERROR),-Werror all-warnings) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
# For developers: the same plug-in, whose products by tiles say what they wait for where they do not get on (kernels/gpu/device/tiles/waits_tell.h).
.PHONY: cuda-tell
cuda-tell: $(BUILD)/lib/fccd-tell/cuda.so
$(BUILD)/obj/cuda-tell/%.o: %.hip Makefile
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)CCACHE_EXTRAFILES='$(CUDA_INPUTS)' $(NVCC) -std=c++17 -O3 -g -x cu $(CUDA_TARGETS) $(GPU_CPPFLAGS) -DGPU_WAITS_TELL \
		-Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra -MMD -MP -MF $(@:.o=.d) -c $< -o $@
CUDA_TELLS := kernels/gpu/device/tiles/tiles
$(BUILD)/lib/fccd-tell/cuda.so: $(CUDA_TELLS:%=$(BUILD)/obj/cuda-tell/%.o) \
		$(filter-out $(CUDA_TELLS:%=$(BUILD)/obj/cuda/%.o),$(patsubst %.hip,$(BUILD)/obj/cuda/%.o,$(GPU_SOURCES))) $(call objects,proto/base/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(NVCC) -shared -cudart static $(CUDA_TARGETS) -Xlinker -z,relro,-z,now $^ -o $@
$(BUILD)/obj/hip/%.o: %.hip Makefile
	@mkdir -p $(@D)
	$(call say,HIPCC)
	$(Q)CCACHE_EXTRAFILES='$(GPU_INPUTS)' $(HIPCC) $(HIP_FLAGS) $(HIP_TARGETS) -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/obj/hip/gemm_gfx940.s: kernels/gpu/device/compute/gemm.hip Makefile
	@mkdir -p $(@D)
	$(call say,HIPCC)
	$(Q)$(HIPCC) $(HIP_FLAGS) --offload-arch=gfx940 --cuda-device-only -MF $(@:.s=.d) -Wno-unused-command-line-argument -S $< -o $@
$(BUILD)/lib/fccd/cuda.so: $(patsubst %.hip,$(BUILD)/obj/cuda/%.o,$(GPU_SOURCES)) $(call objects,proto/base/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(NVCC) -shared -cudart static $(CUDA_TARGETS) -Xlinker -z,relro,-z,now $^ -o $@
$(BUILD)/lib/fccd/hip.so: $(patsubst %.hip,$(BUILD)/obj/hip/%.o,$(GPU_SOURCES)) $(call objects,proto/base/error.c)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(HIPCC) -shared $(HIP_TARGETS) -Wl,-z,relro,-z,now $^ -o $@
