// Package mps runs NVIDIA's Multi-Process Service, which lets the kernels of several processes run
// concurrently on one GPU.
//
// A daemon of the service listens in the folder named by CUDA_MPS_PIPE_DIRECTORY. Processes with
// that folder in their environment become clients when they initialize CUDA. An exception in one
// client, such as an illegal address, affects all clients.
package mps
