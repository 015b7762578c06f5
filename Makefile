# fccd: make help says what there is. Everything that is built lies in build/ (build/san-NAME/ for the sanitizers). Each folder's
# files.mk says what is made of it.

PREFIX ?= /usr/local
DESTDIR ?=
# The places of an installation stand in units, a script's text and a program: what would be misread there is refused.
place_is_odd = $(or $(if $(strip $(1)),,nothing),$(filter-out /%,$(1)),$(word 2,$(1)),$(findstring &,$(1)),$(findstring |,$(1)),$(findstring \,$(1)),\
	$(findstring %,$(1)),$(findstring ",$(1)),$(findstring ',$(1)),$(findstring `,$(1)),$(findstring ;,$(1)),$(findstring ~,$(1)))
ifneq ($(filter install uninstall,$(MAKECMDGOALS)),)
$(foreach place,PREFIX $(if $(value SYSCONFDIR),SYSCONFDIR) $(if $(value SYSTEMDDIR),SYSTEMDDIR) $(if $(value LIBDIR),LIBDIR),$(if $(call place_is_odd,$($(place))),\
	$(error $(place)=$($(place)): allowed is an absolute path without blanks, quotes and & | \ % ; ~)))
override PREFIX := $(patsubst %/,%,$(abspath $(PREFIX)))
endif
# The system's own folders for what belongs to the system; elsewhere all is below PREFIX.
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
SYSTEMDDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/usr/lib,$(PREFIX)/lib)
# The library's folder. The plug-ins lie where fccd looks for them: in lib/fccd beside its bin.
LIBDIR ?= $(PREFIX)/lib
SAN ?=
VERSION := 0.1.0
SOVERSION := 0

comma := ,
BUILD := build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))
CC := gcc
# V=1 shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),,@echo "  $(1)  $@")

# ---- flags ---------------------------------------------------------------------------------------------------------

# OpenBLAS's build with locks, loaded at run time with its threads off: kernels/cpu/blas.h says why.
BLAS_DIR := /usr/lib/$(shell $(CC) -print-multiarch 2>/dev/null)/openblas-pthread
BLAS_LIBRARY := $(BLAS_DIR)/libopenblas.so.0
BLAS_CFLAGS = $(shell PKG_CONFIG_PATH=$(BLAS_DIR)/pkgconfig pkg-config --cflags openblas)
BLAS_LIBS = $(shell PKG_CONFIG_PATH=$(BLAS_DIR)/pkgconfig pkg-config --libs openblas) -Wl,-rpath,$(BLAS_DIR)
DAEMON_LIBS = $(shell pkg-config --libs libevent_core libevent_extra json-c libsystemd libcrypto libseccomp)
JSON_LIBS = $(shell pkg-config --libs json-c)

WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-align -Wvla $(if $(WERROR),-Werror)
# Includes are written from here: "kernels/plan/plan.h".
CPPFLAGS += -D_GNU_SOURCE -I.
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

# ---- what is built ---------------------------------------------------------------------------------------------------

# A folder's sources are all that lie in it: $(call in,FOLDER...).
in = $(foreach folder,$(1),$(sort $(wildcard $(folder)/*.c)))
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
LINK = $(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) -o $@

.PHONY: all man install uninstall clean help FORCE
all:

include proto/files.mk kernels/files.mk daemon/files.mk client/files.mk systemd/files.mk tests/files.mk tests/bench/files.mk tests/fuzz/files.mk

all: $(BUILD)/bin/fccd $(BUILD)/bin/fccctl $(BUILD)/lib/libfccclient.so $(patsubst client/examples/%.c,$(BUILD)/bin/%,$(EXAMPLES)) plugins

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

MAN := daemon/fccd.8 daemon/fccd.conf.5 client/fccctl/fccctl.1 client/libfccclient.3
man: $(addprefix $(BUILD)/man/,$(notdir $(MAN)))
define man_page
$(BUILD)/man/$(notdir $(1)): $(1).scd
	@mkdir -p $$(@D)
	$$(call say,MAN)
	$(Q)scdoc < $$< > $$@
endef
$(foreach page,$(MAN),$(eval $(call man_page,$(page))))

# ---- install -------------------------------------------------------------------------------------------------------

# systemd/place has the list of what goes where.
PLACES = BUILD='$(BUILD)' DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' BINDIR='$(PREFIX)/bin' LIBDIR='$(LIBDIR)' PLUGINDIR='$(PREFIX)/lib/fccd' MANDIR='$(PREFIX)/share/man' \
	SYSCONFDIR='$(SYSCONFDIR)' SYSTEMDDIR='$(SYSTEMDDIR)' VERSION='$(VERSION)' SOVERSION='$(SOVERSION)' PLUGINS='$(PLUGINS) $(VERBS_PLUGIN)'
install: all man
	$(Q)$(PLACES) systemd/place install
uninstall:
	$(Q)$(PLACES) systemd/place uninstall

help:
	@echo 'make           build fccd, fccctl and libfccclient into build/'
	@echo 'make demo      install what is missing, build, and show fused operators on the words of a text (TEXT=path)'
	@echo 'make test      install what is missing, build, and run all tests (SAN=address, undefined, both with a comma, or thread; TEST_JOBS=6 at a time)'
	@echo 'make bench     compare with Open MPI and the same BLAS, in one run'
	@echo 'make bench-nodes  nodes in network namespaces: overlap over a shaped link, and tcp beside iperf3 (as root)'
	@echo 'make bench-rdma links over verbs, in the two emulated machines of make test-rdma'
	@echo 'make bench-gpu compare with PyTorch, NCCL and symmetric memory, on a machine with NVIDIA GPUs'
	@echo 'make fuzz      install what is missing, build the fuzz targets, and run each for 20 s (SECONDS=3600; TARGET=name for one)'
	@echo 'make lint      clang-format, clang-tidy, cppcheck, which folder includes which, and mypy for the Python package'
	@echo 'make install   install to DESTDIR and PREFIX (/usr/local; PREFIX=$$HOME/.local for yourself); make uninstall removes that again'
	@echo 'make check-simulation  simulated times beside measured ones, with how far they are off'
	@echo 'make simulation-figures  the tables and pictures of kernels/sim/README.md'
	@echo 'make wheel     build/fccd-*.whl: the Python package with the library, fccd, fccctl and what they need, for pip install'
	@echo 'make deb       build/deb/*.deb: packages for Debian (DEB_BUILD_PROFILES=pkg.fccd.nocuda or pkg.fccd.nohip leaves a plug-in out,'
	@echo '               DEB_REUSE=yes packs what has been built into build/); make dist: build/dist/fccd-*.tar.xz, the sources'
	@echo 'make man       the man pages'
	@echo 'make deps      install what is missing to build and test (deps-gpu for the hip plug-in, deps-lint, deps-deb, deps-bench, deps-bench-nodes, deps-rdma;'
	@echo '               deps-launchers for the tests under mpirun, mpiexec, srun and torchrun)'
	@echo 'make test-rdma data between nodes over RDMA: two emulated machines with soft-RoCE (a part of make test)'
	@echo 'make test-python  the Python package fcc, with PyTorch from PyPI (a part of make test; PYTEST_ARGS goes to pytest)'
	@echo 'make clean     remove build/'
	@echo 'V=1 shows the commands; BENCH_ARGS goes to tests/bench/compare'

clean:
	rm -rf build

-include $(shell find build/obj build/*/obj build/fuzz/*/obj -name '*.d' -type f 2>/dev/null)
