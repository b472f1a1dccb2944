/* The one type of NCCL that is passed by value. */
#ifndef GPU_H
#define GPU_H

/* struct unique is ncclUniqueId of nccl.h. */
struct unique {
	char bytes[128];
};

#endif
