// Package mps runs NVIDIA's Multi-Process Service, which lets kernels of several processes run
// concurrently on one GPU. Without the service, the GPU switches between processes, which is
// correct but slow.
//
// A daemon of the service listens in the folder that CUDA_MPS_PIPE_DIRECTORY names. Processes with
// that folder in their environment become clients when they initialize CUDA. An exception in one
// client, such as an illegal address, affects all clients.
package mps
