/* Lets a library run with glibc 2.28 although it is built with a newer one. Build scripts include
 * this file before all others. glibc 2.32 to 2.34 gave new versions to functions that it moved from
 * libpthread, libdl and libresolv. These lines name the old versions, which later glibcs keep. */
#if defined(__x86_64__) && defined(__linux__) && !defined(__ASSEMBLER__)
#define SYMMEM_OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
#ifdef __cplusplus /* glibc.c has them for Go */
SYMMEM_OLD(dlclose);
SYMMEM_OLD(dlerror);
SYMMEM_OLD(dlopen);
SYMMEM_OLD(dlsym);
#endif
SYMMEM_OLD(pthread_attr_getstack);
SYMMEM_OLD(pthread_attr_getstacksize);
SYMMEM_OLD(pthread_create);
SYMMEM_OLD(pthread_getattr_np);
SYMMEM_OLD(pthread_getspecific);
SYMMEM_OLD(pthread_key_create);
SYMMEM_OLD(pthread_once);
SYMMEM_OLD(pthread_setspecific);
SYMMEM_OLD(pthread_sigmask);
__asm__(".symver res_search,__res_search@GLIBC_2.2.5");
#undef SYMMEM_OLD
#endif

#ifdef __cplusplus
#include <string> /* has the configuration of libstdc++, and detects the glibc */
#ifdef __GLIBC__
/* Waits of condition variables call a function of glibc 2.30 otherwise. */
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
/* A variable of glibc 2.32 that lets programs with one thread count references faster. */
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
#endif
#endif
