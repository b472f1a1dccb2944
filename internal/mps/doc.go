// Package mps runs NVIDIA's Multi-Process Service, which lets the kernels of several processes run
// concurrently on one GPU. A process becomes a client of a daemon if CUDA_MPS_PIPE_DIRECTORY is the
// daemon's folder when the process initializes CUDA. An exception in one client, such as an illegal
// address, affects all clients.
package mps
