/* The functions of glibc that purego, which is written in Go, takes the addresses of, in the versions
 * of glibc.h. They hide those of glibc in this library only. */
#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__)
#define HIDDEN __attribute__((visibility("hidden")))

__asm__(".symver old_dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver old_dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver old_dlerror,dlerror@GLIBC_2.2.5");
__asm__(".symver old_dlclose,dlclose@GLIBC_2.2.5");

void *old_dlopen(const char *name, int flags);
void *old_dlsym(void *library, const char *name);
char *old_dlerror(void);
int old_dlclose(void *library);

HIDDEN void *dlopen(const char *name, int flags) { return old_dlopen(name, flags); }

HIDDEN void *dlsym(void *library, const char *name) { return old_dlsym(library, name); }

HIDDEN char *dlerror(void) { return old_dlerror(); }

HIDDEN int dlclose(void *library) { return old_dlclose(library); }
#endif
