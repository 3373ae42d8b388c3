/* SPDX-License-Identifier: Apache-2.0 */
#include "libraries.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

#include "old_glibc.h"

enum gs_reason gs_find_driver(struct gs_driver *driver)
{
	void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!handle)
		return GS_REASON_no_driver;
#define X(member, symbol, parameters) *(void **)&driver->member = dlsym(handle, symbol);
	DRIVER_FUNCTIONS(X)
#undef X
	return driver->device_count && driver->init ? 0 : GS_REASON_no_driver;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

struct mapped {
	char cupti[256];
	char cudart[256];
};

static int note_mapped(struct dl_phdr_info *info, size_t size, void *user)
{
	struct mapped *mapped = user;
	const char *name = base_name(info->dlpi_name);
	(void)size;
	if (!strncmp(name, "libcupti.so", 11) && !*mapped->cupti)
		snprintf(mapped->cupti, sizeof mapped->cupti, "%s", info->dlpi_name);
	/* wheels rename it: libcudart-9335f6a2.so.12 */
	if (!strncmp(name, "libcudart", 9) && strstr(name, ".so") && !*mapped->cudart)
		snprintf(mapped->cudart, sizeof mapped->cudart, "%s", info->dlpi_name);
	return 0;
}

/* 12 of libcudart.so.12, libcudart.so.12.4.127; 0 if the name does not say. */
static unsigned major_of(const char *path)
{
	const char *so = strstr(base_name(path), ".so.");
	return so ? (unsigned)strtoul(so + 4, NULL, 10) : 0;
}

static void *try_path(const char *path, int flags)
{
	return dlopen(path, RTLD_NOW | RTLD_LOCAL | flags);
}

static void *search(const struct mapped *mapped, unsigned major)
{
	static const char *const beside[] = {
		"%s/libcupti.so.%u", "%s/../../cuda_cupti/lib/libcupti.so.%u", "%s/../extras/CUPTI/lib64/libcupti.so.%u"};
	static const char *const installed[] = {
		"/usr/local/cuda-%u/extras/CUPTI/lib64/libcupti.so.%u", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.%2$u",
		"/opt/cuda/extras/CUPTI/lib64/libcupti.so.%2$u"};
	char path[512], folder[256];
	const char *wish = getenv("GPUSTROBE_CUPTI");
	void *handle;
	if (wish && (handle = try_path(wish, 0)))
		return handle;
	if (!major)
		return NULL;
	snprintf(path, sizeof path, "libcupti.so.%u", major);
	if ((handle = try_path(path, 0)))
		return handle;
	snprintf(folder, sizeof folder, "%s", mapped->cudart);
	if (strchr(folder, '/')) {
		*strrchr(folder, '/') = 0;
		for (unsigned i = 0; i < sizeof beside / sizeof *beside; i++) {
			snprintf(path, sizeof path, beside[i], folder, major);
			if ((handle = try_path(path, 0)))
				return handle;
		}
	}
	for (unsigned i = 0; i < sizeof installed / sizeof *installed; i++) {
		snprintf(path, sizeof path, installed[i], major, major);
		if ((handle = try_path(path, 0)))
			return handle;
	}
	return NULL;
}

/* DT_SONAME and path of what was loaded; the dynamic section of a loaded object holds addresses on x86-64 and arm64. */
static void describe(void *handle, struct gs_found *found)
{
	struct link_map *map = NULL;
	const char *strings = NULL;
	uint64_t soname = 0;
	if (dlinfo(handle, RTLD_DI_LINKMAP, &map) || !map)
		return;
	snprintf(found->path, sizeof found->path, "%s", map->l_name);
	for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_STRTAB)
			strings = (const char *)(uintptr_t)entry->d_un.d_ptr;
		if (entry->d_tag == DT_SONAME)
			soname = entry->d_un.d_val;
	}
	snprintf(found->soname, sizeof found->soname, "%s", strings && soname ? strings + soname : base_name(map->l_name));
}

enum gs_reason gs_find_cupti(struct gs_cupti *cupti, struct gs_found *found, unsigned driver_major)
{
	struct mapped mapped = {"", ""};
	void *handle = NULL;
	memset(found, 0, sizeof *found);
	dl_iterate_phdr(note_mapped, &mapped);
	if (*mapped.cupti && (handle = try_path(mapped.cupti, RTLD_NOLOAD)))
		found->mapped = 1;
	if (!handle) {
		unsigned major = major_of(mapped.cudart);
		handle = search(&mapped, major ? major : driver_major);
	}
	if (!handle)
		return GS_REASON_no_cupti;
	describe(handle, found);
#define X(member, symbol, needed, parameters) \
	*(void **)&cupti->member = dlsym(handle, symbol); \
	if (needed && !cupti->member && !*found->missing) \
		snprintf(found->missing, sizeof found->missing, "%s", symbol);
	CUPTI_FUNCTIONS(X)
#undef X
	return *found->missing ? GS_REASON_cupti_symbol : GS_REASON_none;
}
