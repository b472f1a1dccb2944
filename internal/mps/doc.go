// Package mps runs NVIDIA's Multi-Process Service, which lets the kernels of several processes run
// concurrently on one GPU. A process becomes a client of a daemon if CUDA_MPS_PIPE_DIRECTORY is the
// daemon's folder. An exception in one client affects all clients.
package mps
