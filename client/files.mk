# The library, fccctl, and the examples. The library has the operators' rows and names, and no kernels.
CLIENT := $(call in,client client/core client/device client/launchers client/memory client/program client/stream client/tune) $(PROGRAMS) $(TUNE) $(addprefix kernels/plan/,args.c cost.c dtype.c epilogue.c names.c spec.c tensor.c \
	compute/bag_request.c compute/dense_request.c compute/factors.c compute/step_request.c compute/step_share.c compute/vector_request.c)
FCCCTL_COMMON := $(addprefix client/fccctl/,args.c control.c field.c \
	$(addprefix bench/,bench_data.c bench_vector.c local.c shape.c))
FCCCTL := $(call in,client/fccctl client/fccctl/bench client/fccctl/doctor client/fccctl/flight client/fccctl/simulate client/fccctl/trace)
EXAMPLES := $(call in,client/examples)

$(BUILD)/lib/libfccclient.so.$(VERSION): $(call objects,$(CLIENT) $(PROTO)) client/libfccclient.map
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) -shared -Wl,-soname,libfccclient.so.$(SOVERSION) -Wl,--version-script=client/libfccclient.map -lm

$(BUILD)/lib/libfccclient.so: $(BUILD)/lib/libfccclient.so.$(VERSION)
	$(Q)ln -sf libfccclient.so.$(VERSION) $(BUILD)/lib/libfccclient.so.$(SOVERSION)
	$(Q)ln -sf libfccclient.so.$(SOVERSION) $@

LINK_CLIENT = -L$(BUILD)/lib -lfccclient -Wl,-rpath,'$$ORIGIN/../lib'

$(BUILD)/bin/fccctl: $(call objects,$(FCCCTL) $(PLANS) $(SIMULATION) $(PROTO) $(CGROUP)) $(BUILD)/lib/libfccclient.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) $(LINK_CLIENT) $(JSON_LIBS) -lm

# They include <fccclient.h>, as programs elsewhere do.
$(BUILD)/obj/client/examples/%.o: CPPFLAGS += -Iproto
$(patsubst client/examples/%.c,$(BUILD)/bin/%,$(EXAMPLES)): $(BUILD)/bin/%: $(BUILD)/obj/client/examples/%.o $(BUILD)/lib/libfccclient.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(LINK) $(LINK_CLIENT) $(EXAMPLE_LIBS)
# One multiplies by the system's BLAS.
$(BUILD)/obj/client/examples/example_ring.o: CPPFLAGS += $(BLAS_CFLAGS)
$(BUILD)/bin/example_ring: EXAMPLE_LIBS = $(BLAS_LIBS)

# The Python package as a wheel that brings all that is needed on a machine with nothing but a GPU's driver.
.PHONY: wheel
wheel: all
	@BUILD='$(BUILD)' VERSION='$(VERSION)' BLAS_LIBRARY='$(BLAS_LIBRARY)' client/python/wheel/make $(PLUGINS)
