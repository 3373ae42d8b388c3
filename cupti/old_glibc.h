/* SPDX-License-Identifier: Apache-2.0 */
/* Names that glibc 2.34 gave a new version when libpthread and libdl went into libc: bound to the old one, which every glibc
 * has, so that the library loads in containers as old as the program wants. tests/test_cupti_build.py looks at the result. */
#ifndef GPUSTROBE_OLD_GLIBC_H
#define GPUSTROBE_OLD_GLIBC_H

#if defined(__GLIBC__) && defined(__x86_64__)
#define GS_OLD(name, version) __asm__(".symver " #name "," #name "@GLIBC_" version)
GS_OLD(dlopen, "2.2.5");
GS_OLD(dlsym, "2.2.5");
GS_OLD(dlinfo, "2.3.3");
GS_OLD(pthread_create, "2.2.5");
GS_OLD(pthread_attr_setstacksize, "2.2.5");
#elif defined(__GLIBC__) && defined(__aarch64__)
#define GS_OLD(name, version) __asm__(".symver " #name "," #name "@GLIBC_2.17")
GS_OLD(dlopen, "");
GS_OLD(dlsym, "");
GS_OLD(dlinfo, "");
GS_OLD(pthread_create, "");
GS_OLD(pthread_attr_setstacksize, "");
#endif

#endif
