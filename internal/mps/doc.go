// Package mps runs NVIDIA's Multi-Process Service, which lets kernels of several processes run
// concurrently on one GPU. Without it the GPU switches between processes, which is correct but
// slow.
//
// A daemon of the service listens in the folder in CUDA_MPS_PIPE_DIRECTORY. Processes whose
// environment names that folder become clients when they open CUDA. An exception of one client,
// such as an illegal address, affects all of them.
package mps
