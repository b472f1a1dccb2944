// Package mps runs NVIDIA's Multi-Process Service, with which kernels of several processes run side
// by side on one GPU. Without it processes take turns there, which is right, and slow.
//
// A daemon of the service listens in a folder, which CUDA_MPS_PIPE_DIRECTORY names. Processes whose
// environment names it become clients as they open CUDA. An exception of one client, such as an
// illegal address, is one for all of them.
package mps
