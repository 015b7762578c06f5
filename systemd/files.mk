# Packages for Debian, and the sources as one file. systemd/source says what the version is, and which files the sources are.

.PHONY: deb dist
DEB_REUSE ?=
DEB_BUILD_PROFILES ?=
# Plug-ins whose compilers are missing have no package.
deb: deps deps-deb
	$(if $(DEB_REUSE),@$(MAKE) --no-print-directory all man $(foreach kind,NVCC=nocuda HIPCC=nohip,$(if $(filter pkg.fccd.$(lastword $(subst =, ,$(kind))),$(DEB_BUILD_PROFILES)),$(firstword $(subst =, ,$(kind)))=)))
	@DEB_REUSE='$(DEB_REUSE)' DEB_BUILD_PROFILES='$(DEB_BUILD_PROFILES) $(if $(NVCC),,pkg.fccd.nocuda) $(if $(HIPCC),,pkg.fccd.nohip)' \
		BUILD='$(BUILD)' VERSION='$(VERSION)' systemd/pack deb
dist:
	@BUILD='$(BUILD)' VERSION='$(VERSION)' systemd/pack dist
